"""`kvledger keys`: who may call the server, as which tenant, for how much."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.cli.ledger import Where
from kvledger.cli.options import ledger_address
from kvledger.cli.tables import show_whole
from kvledger.clock import SystemClock
from kvledger.errors import InvalidRequestError

if TYPE_CHECKING:
    from kvledger.ledger.keys import KeyStore

keys = typer.Typer(help="Make, list and revoke API keys.", no_args_is_help=True)

_BUDGET = re.compile(r"(?P<usd>\d+(\.\d+)?)\s*/\s*month")
_RATE = re.compile(r"(?P<requests>\d+)\s*/\s*min(ute)?")


@keys.callback()
def options() -> None:
    """Make, list and revoke API keys. They are kept beside the ledger, as hashes."""


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="The key's name on receipts.")],
    where: Where = None,
    tenant: Annotated[str, typer.Option(help="Whose cache it shares.  [default: the name]", show_default=False)] = "",
    budget: Annotated[
        str | None, typer.Option(metavar="USD/month", help="The most it may spend, like 50/month.")
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="N/min", help="The most requests, like 60/min.")] = None,
) -> None:
    """Make a key and print it, once: it cannot be shown again.

    Example: kvledger keys add ci --tenant acme --budget 50/month --rate 60/min
    """
    dollars = Decimal(_limit(budget, _BUDGET, "--budget", "50/month")) if budget else None
    requests = int(_limit(rate, _RATE, "--rate", "60/min")) if rate else None
    secret = _open(where, create=True).add(name, SystemClock().now(), tenant=tenant, budget=dollars, rate=requests)
    typer.echo(secret)
    typer.echo("Keep it: only its hash is stored, and it cannot be shown again.", err=True)


@keys.command("list")
def show(where: Where = None) -> None:
    """List the keys, the revoked ones too."""
    from rich.table import Table
    from rich.text import Text

    from kvledger.ledger.money import plain

    table = Table(
        "name", "tenant", "$ per month", "requests per minute", "made", "revoked", box=None, header_style="dim"
    )
    for key in _open(where, create=False).all():
        budget = "-" if key.budget is None else plain(key.budget)
        rate = "-" if key.rate is None else str(key.rate)
        cells = key.name, key.tenant, budget, rate, _day(key.created_at), _day(key.revoked_at)
        table.add_row(*map(Text, cells))
    show_whole(table)


@keys.command()
def revoke(name: Annotated[str, typer.Argument(help="The key's name.")], where: Where = None) -> None:
    """Close a key for good. Its name stays taken, as receipts carry it."""
    _open(where, create=False).revoke(name, SystemClock().now())
    typer.echo(f"The key {name} is revoked.")


def _open(where: str | None, *, create: bool) -> KeyStore:
    from kvledger.ledger.database import Database
    from kvledger.ledger.keys import KeyStore

    return KeyStore(Database(ledger_address(where), create=create))


def _limit(text: str, form: re.Pattern[str], option: str, example: str) -> str:
    match = form.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(f"{option} is {text!r}, which cannot be read: write it like {example}.")
    return match[1]


def _day(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
