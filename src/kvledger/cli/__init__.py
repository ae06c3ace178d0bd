"""The command line: one file per verb, each with one function that imports what is heavy only when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvledger import __version__
from kvledger.cli.audit import audit
from kvledger.cli.bench import bench
from kvledger.cli.cache import cache
from kvledger.cli.check import check
from kvledger.cli.diff import diff
from kvledger.cli.emulate import emulate
from kvledger.cli.explain import explain
from kvledger.cli.generate import generate
from kvledger.cli.keys import keys
from kvledger.cli.ledger import ledger
from kvledger.cli.plan import plan
from kvledger.cli.price import price
from kvledger.cli.pull import pull
from kvledger.cli.serve import serve
from kvledger.cli.sim import sim
from kvledger.cli.tokens import tokens
from kvledger.errors import DownloadError, KvledgerError, ServerError

app = typer.Typer(
    name="kvledger",
    help="An LLM server that keeps the books on its KV cache.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvledger {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """An LLM server that keeps the books on its KV cache."""


for verb in (serve, emulate, generate, tokens, pull, price, audit, diff, check):
    app.command()(verb)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")
app.add_typer(keys, name="keys")
app.add_typer(ledger, name="ledger")
app.add_typer(plan, name="plan")
app.add_typer(explain, name="explain")
app.add_typer(sim, name="sim")


def main() -> None:
    """Run a command. Exit codes: 0 done, 1 failed on the way, 2 asked for something impossible, 130 Ctrl-C."""
    try:
        app()
    except (DownloadError, ServerError) as error:
        fail(str(error), 1)
    except KvledgerError as error:
        fail(str(error), 2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}.", 1)


def fail(message: str, code: int) -> None:
    """Say what went wrong, in one sentence on standard error, and exit."""
    typer.echo(f"kvledger: {message}", err=True)
    sys.exit(code)
