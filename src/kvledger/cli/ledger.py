"""`kvledger ledger`: the receipts of past requests, checked, shown and exported."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvledger.cli.options import ledger_address, moment
from kvledger.cli.tables import show_whole

if TYPE_CHECKING:
    from decimal import Decimal

    from kvledger.ledger.machine import MachinePrice
    from kvledger.ledger.store import Filter, Ledger, LedgerRow

ledger = typer.Typer(help="Check, show and export the receipts of past requests.", no_args_is_help=True)

Where = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        envvar="KVLEDGER_LEDGER",
        metavar="FILE|URL",
        help="The ledger: a file, or postgresql://host/database.  [default: ledger.db in the user's data folder]",
        show_default=False,
    ),
]
Since = Annotated[str | None, typer.Option(metavar="DATE", help="Requests from then on (UTC).")]
Until = Annotated[str | None, typer.Option(metavar="DATE", help="Requests before then (UTC).")]
Tenant = Annotated[str | None, typer.Option(help="Requests of this tenant only.")]
Model = Annotated[str | None, typer.Option(help="Requests for this model only.")]


@ledger.callback()
def options() -> None:
    """Check, show and export the receipts of past requests."""


@ledger.command()
def verify(where: Where = None) -> None:
    """Check that no row was altered, is missing or out of order; exit code 1 if any is.

    Keep the digest that this prints somewhere else: as long as the row that has it still has it, everything up to there
    is what it was.
    """
    verified = _open(where).verify()
    for fault in verified.faults:
        typer.echo(fault.detail)
    if verified.faults:
        raise typer.Exit(1)
    typer.echo(f"{verified.rows} rows, all whole and in order; the last has the digest {verified.digest}")


@ledger.command()
def show(
    where: Where = None,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = None,
    model: Model = None,
    last: Annotated[int, typer.Option(min=1, help="How many receipts, the newest.")] = 20,
    machine_price: Annotated[
        str | None,
        typer.Option(
            metavar="USD/hour",
            help="Price the machine's time too, such as 2.50/hour: what it took, and what"
            " a million tokens of each kind took.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print whole receipts, one JSON object a line.")] = False,
) -> None:
    """Show the newest receipts, in the order of the ledger.

    Example: kvledger ledger show --since 2026-11-01 --tenant acme --machine-price 2.50/hour
    """
    from kvledger.ledger.machine import MachinePrice

    price = MachinePrice.parse(machine_price) if machine_price else None
    rows = list(_open(where).rows(_filter(since, until, tenant, model), last=last))
    if as_json:
        for row in rows:
            typer.echo(row.receipt.encoded().decode())
    else:
        _show(rows, price)


@ledger.command()
def export(
    to: Annotated[str, typer.Argument(metavar="FILE|-", help="Where to; '-' is standard output (not for Parquet).")],
    where: Where = None,
    form: Annotated[
        Literal["csv", "json", "parquet"] | None,
        typer.Option("--format", help="csv, json or parquet.  [default: by the file's ending]", show_default=False),
    ] = None,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = None,
    model: Model = None,
) -> None:
    """Write receipts to a file: a table (CSV, Parquet) or, as JSON, whole.

    Example: kvledger ledger export november.parquet --since 2026-11-01 --until 2026-12-01
    """
    from kvledger.ledger.export import export_format, write_csv, write_json, write_parquet

    chosen = export_format(to, form)
    rows = _open(where).rows(_filter(since, until, tenant, model))
    if chosen == "parquet":
        write_parquet(rows, Path(to))
        return
    write = write_csv if chosen == "csv" else write_json
    if to == "-":
        write(rows, sys.stdout)
        return
    with Path(to).open("w", encoding="utf-8", newline="") as file:
        write(rows, file)


def _open(where: str | None) -> Ledger:
    from kvledger.ledger.store import Ledger

    return Ledger(ledger_address(where), create=False)


def _filter(since: str | None, until: str | None, tenant: str | None, model: str | None) -> Filter:
    from kvledger.ledger.store import Filter

    return Filter(
        since=None if since is None else moment(since, "--since"),
        until=None if until is None else moment(until, "--until"),
        tenant=tenant,
        model=model,
    )


def _show(rows: list[LedgerRow], price: MachinePrice | None) -> None:
    from datetime import UTC, datetime

    from rich.table import Table
    from rich.text import Text

    from kvledger.ledger.machine import machine_cost

    heads = ["row", "at (UTC)", "tenant", "model", "prompt", "read", "written", "reused", "output", "end", "$"]
    if price:
        heads += ["machine $", "$/M input", "$/M reused", "$/M output"]
    table = Table(*heads, box=None, header_style="dim", pad_edge=False)
    for row in rows:
        receipt, split = row.receipt, row.receipt.usage.split
        when = datetime.fromtimestamp(receipt.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
        cells = [str(row.seq), when, receipt.tenant, receipt.model, str(split.prompt_tokens), str(split.read)]
        cells += [str(split.written_tokens), str(receipt.reused_tokens), str(receipt.usage.output)]
        cells += [receipt.finish_reason, _money(receipt.bill.total)]
        if price:
            cost = machine_cost(receipt, price)
            figures = cost.total, cost.input_per_million, cost.reused_per_million, cost.output_per_million
            cells += [_money(figure, digits=4) for figure in figures]
        table.add_row(*map(Text, cells))
    for column, head in zip(table.columns, heads, strict=True):
        column.no_wrap = True
        if head not in ("at (UTC)", "tenant", "model", "end"):
            column.justify = "right"
    show_whole(table)


def _money(usd: Decimal | None, digits: int | None = None) -> str:
    """All of an amount, or its first digits for one that was measured and not agreed on."""
    from decimal import Context

    from kvledger.ledger.money import plain

    return "-" if usd is None else plain(Context(prec=digits).plus(usd) if digits else usd)
