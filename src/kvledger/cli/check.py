"""`kvledger check`: whether and what one request body would cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvledger.providers.prompt import ProviderPrompt


def check(
    body: Annotated[Path, typer.Argument(metavar="BODY.json", help="A request body, or a log line that holds one.")],
    provider: Annotated[
        list[str] | None,
        typer.Option(help="Whose rules; repeatable.  [default: all that serve the model]", show_default=False),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="DATE", help="By the rules of that day.  [default: now]", show_default=False)
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON ('-': standard output).")
    ] = None,
) -> None:
    """Say what one body would write to each provider's cache, and what the same body would read a minute later.

    Tokens are estimated at four bytes each, so near a minimum the answer is uncertain.

    Examples:

      kvledger check body.json

      kvledger check body.json --provider anthropic --provider bedrock --at 2026-06-01 --json -
    """
    from kvledger.audit.readers.body_file import prompt_of, prompts_of, read_body
    from kvledger.cli.options import moment
    from kvledger.providers.catalogue import provider_named

    read, when = read_body(body), moment(at, "--at")
    prompts = [(provider_named(name).name, prompt_of(read, name)) for name in provider or ()] or prompts_of(read, when)
    said = [_verdict(name, prompt, when) for name, prompt in prompts]
    if json_to == "-":
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
        return
    if json_to is not None:
        Path(json_to).write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _show(said)


def _verdict(provider: str, prompt: ProviderPrompt, at: float) -> dict[str, Any]:
    from kvledger.audit.minimum import minimum_of
    from kvledger.audit.record import Source
    from kvledger.audit.request import Request
    from kvledger.ledger.account import BreakReason
    from kvledger.providers.catalogue import rulebook
    from kvledger.providers.entries import MemoryEntries

    rules, entries = rulebook(provider), MemoryEntries()
    request = Request(
        Source("", 1), provider, "", prompt.model, at, None, True, "", "", prompt, (), None, prompt.tokens
    )
    first = rules.judge(prompt, entries, at)
    entries.put(first.written)
    again = rules.judge(prompt, entries, at + 60, earlier=prompt).account
    why = first.account if not first.written else again
    told = [each for each in why.breaks if each.reason is not BreakReason.COLD]
    return {
        "provider": provider,
        "model": prompt.model,
        "rule": first.account.rule,
        "tokens": prompt.tokens,
        "minimum_tokens": minimum_of(request),
        "marks": [{"path": part.path, "ttl": part.breakpoint.ttl} for part in prompt.parts if part.breakpoint],
        "caches": bool(again.split.read),
        "written": dict(first.account.split.written),
        "read_again": again.split.read,
        "fresh_again": again.split.fresh,
        "why": [{"reason": each.reason.value, "detail": each.detail} for each in told],
        "certain": first.account.certain,
    }


def _show(said: list[dict[str, Any]]) -> None:
    from kvledger.page.blocks import Block, Page, Paragraph, Table
    from kvledger.page.terminal import show

    rows, reasons = [], []
    for one in said:
        marks = ", ".join(f"{mark['path']} {mark['ttl']}" for mark in one["marks"]) or "none"
        written = ", ".join(f"{tokens:,} for {ttl}" for ttl, tokens in one["written"].items()) or "-"
        least = "-" if one["minimum_tokens"] is None else f"{one['minimum_tokens']:,}"
        verdict = "yes" if one["caches"] else "no"
        rows.append((one["provider"], verdict, f"{one['tokens']:,}", least, written, f"{one['read_again']:,}", marks))
        reasons += [f"{one['provider']}: {why['detail'] or why['reason']}" for why in one["why"]]
    columns = ("provider", "caches", "tokens (est.)", "minimum", "written (billed)", "read a minute later", "marks")
    tones = [["", "good" if row[1] == "yes" else "bad", "", "", "", "", ""] for row in rows]
    blocks: list[Block] = [
        Table(columns, rows, numeric=(2, 3, 5), tones=tones),
        *map(Paragraph, dict.fromkeys(reasons)),
    ]
    show(Page(f"What {said[0]['model']} would cache", blocks))
