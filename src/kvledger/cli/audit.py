"""`kvledger audit`: what a log's caching lost, why, and the smallest change that gets it back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.errors import AuditError, InvalidRequestError

if TYPE_CHECKING:
    from kvledger.audit.findings import Audit
    from kvledger.audit.record import Record, Unread
    from kvledger.audit.report.timeline import Timeline
    from kvledger.audit.whatif import Policies

    Records = Iterator[Record | Unread]


def audit(
    logs: Annotated[list[str], typer.Argument(metavar="LOG...", help="Files, folders of files, or a ledger's URL.")],
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write everything as JSON ('-': standard output).")
    ] = None,
    html_to: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one self-contained HTML file with charts.")
    ] = None,
    sarif_to: Annotated[
        str | None, typer.Option("--sarif", metavar="FILE|-", help="Write the findings as SARIF 2.1.0.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION", help="Exit with 1 on a finding's CODE, hit-rate<0.8 or waste>5usd; repeatable."
        ),
    ] = None,
    no_text: Annotated[bool, typer.Option("--no-text", help="Show no text of any prompt, not even excerpts.")] = False,
    no_what_if: Annotated[
        bool, typer.Option("--no-what-if", help="Try no other policies: the quickest audit.")
    ] = False,
    elsewhere: Annotated[
        list[str] | None,
        typer.Option(metavar="PROVIDER:MODEL", help="What if another model had answered; repeatable."),
    ] = None,
    route: Annotated[
        str | None,
        typer.Option(metavar="SHARE:PROVIDER:MODEL", help="What if a share of conversations (0.3) went there."),
    ] = None,
    compact: Annotated[
        str | None, typer.Option(metavar="N:M", help="What if histories were compacted at N tokens to M.")
    ] = None,
    machine_price: Annotated[
        str | None, typer.Option(metavar="USD/hour", help="What if a machine of one's own served this, at that price.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="DATE", help="When it happened, for logs that name no time.  [default: now]", show_default=False
        ),
    ] = None,
) -> None:
    """Say what the cache should have saved, what it did save, why the rest was lost, and what gets it back.

    Reads request and response logs of OpenAI, Anthropic and Gemini, batch files, LiteLLM, Langfuse, OpenTelemetry, HAR,
    Claude Code and Codex sessions, this program's ledger, and rows of usage; .gz and .zst too. Nothing leaves this
    machine. Exit codes: 0 done, 1 a condition of --fail-on holds, 2 nothing could be read.

    Examples:

      kvledger audit requests.jsonl

      kvledger audit ~/.claude/projects --no-text --html audit.html

      kvledger audit logs/ --json - --fail-on VOLATILE_PREFIX --fail-on "hit-rate<0.8"
    """
    from kvledger.audit.audit import Options
    from kvledger.audit.audit import audit as judge
    from kvledger.audit.readers.logs import read_logs
    from kvledger.audit.report.gate import failure, parse_gate
    from kvledger.audit.report.json import audit_json
    from kvledger.audit.report.sarif import audit_sarif
    from kvledger.audit.report.text import shown
    from kvledger.audit.report.timeline import Timeline
    from kvledger.cli.options import moment
    from kvledger.ledger.prices import Prices

    if json_to == sarif_to == "-":
        raise InvalidRequestError("--json and --sarif both write to standard output: name a file for one of them.")
    gates = [parse_gate(text) for text in fail_on or ()]
    policies = _policies(elsewhere or [], route, compact, machine_price)
    options = Options(moment(at, "--at"), what_if=not no_what_if, policies=policies)
    timeline, prices = Timeline(), Prices()
    with _progress(logs) as (told, counted):
        records: Iterable[Record | Unread] = counted(read_logs(logs, told))
        result = judge(timeline.watch(records) if html_to else records, prices=prices, options=options)
    if not result.requests:
        raise AuditError(_nothing(result))
    result = shown(result, text=not no_text)
    if json_to is not None:
        _write(audit_json(result), json_to)
    if sarif_to is not None:
        _write(audit_sarif(result), sarif_to)
    if html_to is not None:
        _write_html(result, timeline, html_to)
    if "-" not in (json_to, sarif_to):
        _show(result)
    failed = [reason for gate in gates if (reason := failure(gate, result))]
    for reason in failed:
        typer.echo(f"kvledger: --fail-on: {reason}.", err=True)
    if failed:
        raise typer.Exit(1)


def _policies(elsewhere: list[str], route: str | None, compact: str | None, machine_price: str | None) -> Policies:
    from kvledger.audit.whatif import Policies
    from kvledger.ledger.machine import MachinePrice
    from kvledger.providers.catalogue import split_name

    for name in elsewhere:
        split_name(name)
    routed, compacted = None, None
    if route is not None:
        share, _, model = route.partition(":")
        try:
            routed = (float(share), model)
        except ValueError:
            routed = (-1.0, model)
        if not 0 <= routed[0] <= 1 or not model:
            raise AuditError(
                f"--route is {route[:80]!r}: write it as SHARE:PROVIDER:MODEL, such as 0.3:openai:gpt-5-mini."
            )
        split_name(model)
    if compact is not None:
        first, _, second = compact.partition(":")
        if not (first.isdecimal() and second.isdecimal() and int(first) > int(second) > 0):
            raise AuditError(f"--compact is {compact[:80]!r}: write it as N:M with N above M, such as 150000:20000.")
        compacted = (int(first), int(second))
    machine = MachinePrice.parse(machine_price).usd_per_hour if machine_price else None
    return Policies(tuple(elsewhere), routed, compacted, machine)


@contextmanager
def _progress(logs: list[str]) -> Iterator[tuple[Callable[[int], None], Callable[[Records], Records]]]:
    """On a terminal a bar with the share read, requests a second and the time left; elsewhere nothing."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from kvledger.audit.readers.logs import files
    from kvledger.clock import SystemClock

    console = Console(stderr=True)
    total = sum(path.stat().st_size for path in files(logs) if isinstance(path, Path))
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[rate]}"))
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)
    clock = SystemClock()
    with bar:
        task = bar.add_task("reading", total=total, rate="")
        begun = clock.monotonic()

        def told(size: int) -> None:
            bar.advance(task, size)

        def counted(records: Records) -> Records:
            number = 0
            for number, record in enumerate(records, 1):
                yield record
                if number % 1000 == 0:
                    rate = number / max(clock.monotonic() - begun, 1e-9)
                    bar.update(task, rate=f"{rate:,.0f} requests/s")
            bar.update(task, description=f"auditing {number:,} requests", total=None)

        yield told, counted


def _nothing(result: Audit) -> str:
    if not result.unread:
        return "There is no request in these logs."
    first = result.unread[0]
    more = f", and {len(result.unread) - 1} more such" if len(result.unread) > 1 else ""
    return f"Nothing could be read: {first.source.file}:{first.source.line}: {first.reason.rstrip('.')}{more}."


def _write(text: str, to: str) -> None:
    if to == "-":
        sys.stdout.write(text + "\n")
    else:
        Path(to).write_text(text + "\n", encoding="utf-8")


def _write_html(result: Audit, timeline: Timeline, to: Path) -> None:
    from kvledger.audit.costs import Costs
    from kvledger.audit.report.pages import full_page
    from kvledger.ledger.prices import Prices
    from kvledger.page.html import write

    write(full_page(result, timeline, Costs(Prices())), to)


def _show(result: Audit) -> None:
    from kvledger.audit.report.pages import short_page
    from kvledger.page.terminal import show

    show(short_page(result))
