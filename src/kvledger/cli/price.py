"""`kvledger price`: what a provider charges for a usage object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.cli.options import moment
from kvledger.cli.tables import show_whole
from kvledger.errors import InvalidRequestError

if TYPE_CHECKING:
    from kvledger.ledger.account import Usage
    from kvledger.ledger.bill import Bill, Statement


def price(
    provider: Annotated[str, typer.Option(help="Whose prices: anthropic, openai, gemini, deepseek, ...")],
    model: Annotated[str, typer.Option(help="The model's name, as the provider writes it.")],
    usage: Annotated[str, typer.Option(metavar="FILE|-", help="A usage object as JSON, or a response that holds one.")],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="When the request was made, such as 2026-04-30 or 2026-04-30T02:00Z: then's prices.  [default: now]",
            show_default=False,
        ),
    ] = None,
    api: Annotated[str, typer.Option(help="The wire format, where a provider has several: chat, responses.")] = "",
    service_tier: Annotated[
        str | None, typer.Option(help="batch, flex or priority, where the usage object does not say.")
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="Region, where it has a price and the object does not say.")
    ] = None,
    storage_token_hours: Annotated[
        int | None, typer.Option(min=0, help="Tokens x hours that explicit caches were kept; no response says that.")
    ] = None,
    json_to: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': to standard output).")
    ] = None,
) -> None:
    """Price any raw usage object, by the prices of its day; what is unknown is said to be unknown, never zero.

    Examples:

      kvledger price --provider anthropic --model claude-sonnet-5-5 --usage usage.json

      echo '{"prompt_tokens": 9126, "completion_tokens": 3197, "prompt_tokens_details": {"cached_tokens": 4864}}' |
      kvledger price --provider openai --model gpt-5 --at 2025-10-26 --usage - --json -
    """
    from dataclasses import replace

    from kvledger.ledger.prices import Prices
    from kvledger.providers.catalogue import rulebook

    used = rulebook(provider).usage(_read(usage), api=api)
    used = replace(
        used,
        service_tier=service_tier or used.service_tier,
        region=region or used.region,
        storage_token_seconds=used.storage_token_seconds + 3600 * (storage_token_hours or 0),
    )
    statement = Prices().statement(provider, model, used, moment(at, "--at"))
    if json_to is None:
        _show(statement, used)
        return
    written = json.dumps(_record(statement.cost), indent=2, ensure_ascii=False)
    if json_to == Path("-"):
        typer.echo(written)
    else:
        json_to.write_text(written + "\n", encoding="utf-8")


def _read(source: str) -> dict[str, Any]:
    text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"--usage {source} is not JSON ({error}): give one usage object.") from error
    if isinstance(found, dict):
        for name in ("usage", "usageMetadata", "usage_metadata"):
            if isinstance(found.get(name), dict):
                return dict(found[name])
        return found
    raise InvalidRequestError(f"--usage {source} is a JSON {type(found).__name__}: give one usage object.")


def _record(bill: Bill) -> dict[str, Any]:
    """Amounts as decimal strings; null with a reason where the price is unknown."""
    from kvledger.ledger.bill import LineKind
    from kvledger.ledger.money import plain

    amounts = {f"{kind.value}_usd": bill.usd(kind) for kind in LineKind} | {"total_usd": bill.total}
    record: dict[str, Any] = {name: None if usd is None else plain(usd) for name, usd in amounts.items()}
    if bill.unknown:
        record |= {"reason": "; ".join(bill.unknown), "near": list(bill.near)}
    return record | {"prices": bill.edition, "confidence": bill.confidence or None}


def _show(statement: Statement, usage: Usage) -> None:
    from rich.console import Console
    from rich.table import Table

    from kvledger.ledger.money import plain

    bill = statement.cost
    table = Table("", "tokens", "$ per million", "$", box=None, header_style="dim", pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for line in bill.lines:
        name = f"{line.kind.value.replace('_', ' ')} {line.ttl}".strip()
        unit = " h" if line.kind.value == "storage" else ""
        rate = "unknown" if line.rate is None else plain(line.rate)
        table.add_row(name, f"{line.tokens:,}{unit}", rate, "unknown" if line.usd is None else plain(line.usd))
    for name, total in (("total", bill.total), ("without a cache", statement.uncached.total)):
        table.add_row(
            name, "", "", "unknown" if total is None else plain(total), style="bold" if name == "total" else ""
        )
    show_whole(table)
    console = Console(highlight=False)
    for reason in bill.unknown:
        console.print(f"Unknown: {reason}.", style="yellow", markup=False, soft_wrap=True)
    if bill.near:
        console.print(f"Did you mean {' or '.join(bill.near)}?", markup=False, soft_wrap=True)
    doubt = " Part of this is inferred or conflicting (confidence C)." if bill.confidence == "C" else ""
    console.print(
        f"{usage.split.prompt_tokens:,} prompt tokens, {usage.output:,} output. Prices: {bill.edition}.{doubt}",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
