"""`kvledger sim`: what a prompt cache of a given size would have held of a recorded trace."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvledger.sim.curve import Curve
    from kvledger.sim.report import Series
    from kvledger.sim.trace import Trace

sim = typer.Typer(help="Simulate a prompt cache on a recorded trace.", no_args_is_help=True)

TracePath = Annotated[
    Path, typer.Argument(metavar="TRACE", help="A trace file, plain or gzip, or a folder; its format is detected.")
]
BlockSize = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a block.  [default: what the format says]", show_default=False)
]
TimeUnit = Annotated[
    str | None, typer.Option(metavar="s|ms", help="Unit of the trace's times, if it is not what the format says.")
]
TokenizerName = Annotated[
    str | None, typer.Option("--tokenizer", metavar="MODEL", help="Model whose tokenizer encodes logs of text.")
]
JsonTo = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': to standard output).")]
Policies = Annotated[
    list[str], typer.Option("--policy", help="lru, fifo, lfu, cost or belady; may be given several times.")
]
Sizes = Annotated[
    str | None, typer.Option("--at", metavar="TOKENS,...", help="Capacities to show.  [default: spread over the curve]")
]


@sim.callback()
def options() -> None:
    """Simulate a prompt cache on a recorded trace.

    Reads Mooncake, Bailian, kv-cache-tester and RAGPulse traces, events of this cache, and request logs.
    """


@sim.command()
def run(
    trace: TracePath,
    capacity_tokens: Annotated[
        str | None,
        typer.Option(metavar="N|unlimited", help="Tokens of KV that there is room for.  [default: unlimited]"),
    ] = None,
    policy: Annotated[str, typer.Option(help="What goes first: lru, fifo, lfu, cost or belady.")] = "lru",
    ttl: Annotated[float | None, typer.Option(help="Seconds without use after which a block is gone.")] = None,
    tiers: Annotated[
        str | None, typer.Option(metavar="ram:N,disk:N", help="Two tiers, in place of --capacity-tokens.")
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="tail|head", help="Which blocks of one request go first; head shows why not to.")
    ] = "tail",
    replicas: Annotated[int, typer.Option(help="Caches of this capacity, each with requests of its own.")] = 1,
    router: Annotated[str, typer.Option(help="Who gets a request: round-robin, prefix or session.")] = "round-robin",
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
    tokenizer: TokenizerName = None,
    json_to: JsonTo = None,
) -> None:
    """Count what hits in one cache, or in a fleet.

    kvledger sim run conversation_trace.jsonl --capacity-tokens 5000000

    kvledger sim run trace.jsonl --policy belady --capacity-tokens 1000000 --json -

    kvledger sim run trace.jsonl --tiers ram:500000,disk:20000000 --ttl 600

    kvledger sim run trace.jsonl --capacity-tokens 1000000 --replicas 4 --router prefix
    """
    from dataclasses import replace

    from kvledger.errors import SimulationError
    from kvledger.sim.capacity import Capacity, parse_tiers
    from kvledger.sim.report import of_run
    from kvledger.sim.simulate import Setup, simulate

    if tiers is not None and capacity_tokens is not None:
        raise SimulationError("--tiers and --capacity-tokens both say how much fits into RAM: leave one of them out.")
    ram, disk = (Capacity.parse(capacity_tokens or "unlimited"), None) if tiers is None else parse_tiers(tiers)
    asked = Setup(
        policy=policy, ttl=ttl, order=order, has_disk=disk is not None, replicas=replicas, router=router
    )  # before the trace is read: a wrong option is said at once
    loaded = read(trace, block_size, time_unit, tokenizer)
    setup = replace(
        asked,
        ram_blocks=ram.blocks(loaded.block_size),
        disk_blocks=None if disk is None else disk.blocks(loaded.block_size),
    )
    result = of_run(loaded, setup, simulate(loaded, setup))
    if not written(result, json_to):
        show_run(result)


@sim.command()
def curve(
    trace: TracePath,
    policy: Policies = ["lru"],  # noqa: B006 (typer copies it)
    at: Sizes = None,
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
    tokenizer: TokenizerName = None,
    json_to: JsonTo = None,
) -> None:
    """Show the hit ratio at every capacity: LRU in one pass, other policies at chosen points.

    kvledger sim curve conversation_trace.jsonl

    kvledger sim curve trace.jsonl --policy lru --policy belady --at 100000,1000000,10000000 --json curve.json
    """
    from kvledger.sim.report import of_curve

    loaded, whole, all_series = curves(trace, policy, at, block_size, time_unit, tokenizer)
    result = of_curve(loaded, whole, all_series)
    if not written(result, json_to):
        show_curve(result)


@sim.command()
def plot(
    trace: TracePath,
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="What to write: a .png, .svg or .html file.")],
    policy: Policies = ["lru"],  # noqa: B006 (typer copies it)
    at: Sizes = None,
    block_size: BlockSize = None,
    time_unit: TimeUnit = None,
    tokenizer: TokenizerName = None,
) -> None:
    """Draw the hit curve.

    kvledger sim plot conversation_trace.jsonl curve.svg

    kvledger sim plot trace.jsonl curve.html --policy lru --policy belady
    """
    from kvledger.sim.plot import check_suffix, write

    check_suffix(picture)
    loaded, _, all_series = curves(trace, policy, at, block_size, time_unit, tokenizer)
    write(picture, loaded, all_series, title=f"{trace.name}: what hits, by capacity")
    typer.echo(f"wrote {picture}")


def read(path: Path, block_size: int | None, time_unit: str | None, tokenizer: str | None) -> Trace:
    """The trace; what is to be said about it goes to standard error."""
    from kvledger.sim.policies import check_name
    from kvledger.sim.reading import read_trace

    units = {"s": 1.0, "ms": 0.001}
    if time_unit is not None:
        check_name("unit of time", time_unit, list(units))
    loaded = read_trace(
        path,
        block_size=block_size,
        time_unit=None if time_unit is None else units[time_unit],
        encode=None if tokenizer is None else encoder(tokenizer),
    )
    for note in loaded.notes:
        typer.echo(f"note: {note}", err=True)
    return loaded


def encoder(model: str) -> Callable[[str], Sequence[int]]:
    """A model's tokenizer as a function."""
    from kvledger.cli.tokens import load_tokenizer

    return load_tokenizer(model).encode


def curves(
    path: Path,
    policies: Sequence[str],
    at: str | None,
    block_size: int | None,
    time_unit: str | None,
    tokenizer: str | None,
) -> tuple[Trace, Curve, list[Series]]:
    from kvledger.sim.capacity import Capacity
    from kvledger.sim.curve import Curve
    from kvledger.sim.policies import POLICIES, check_name
    from kvledger.sim.report import series

    for policy in policies:
        check_name("policy", policy, list(POLICIES))
    capacities = None if at is None else [Capacity.parse(part) for part in at.split(",")]
    loaded = read(path, block_size, time_unit, tokenizer)
    whole = Curve.of(loaded)
    sizes = None
    if capacities is not None:
        found = (capacity.blocks(loaded.block_size) for capacity in capacities)
        sizes = [whole.end or 1 if size is None else size for size in found]
    return loaded, whole, [series(loaded, policy, sizes, curve=whole) for policy in dict.fromkeys(policies)]


def written(result: dict[str, Any], to: Path | None) -> bool:
    """Write JSON where it is wanted; False if it is wanted nowhere."""
    if to is None:
        return False
    text = json.dumps(result, indent=2)
    if to == Path("-"):
        typer.echo(text)
    else:
        to.write_text(text + "\n", encoding="utf-8")
    return True


def show_run(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    trace, cache = result["trace"], result["cache"]
    console.print(
        f"{trace['format']} trace: {trace['requests']:,} requests, {trace['input_tokens']:,} input tokens,"
        f" {trace['blocks']:,} blocks of {trace['block_size']} ({trace['distinct_blocks']:,} distinct)"
    )
    console.print(f"{cache['policy']}, {cache['capacity_tokens']} tokens: {cache['policy_rule']}\n")
    table = Table("", "", "hits", "of", "ratio", box=None, header_style="dim", pad_edge=False)
    for column in table.columns[2:]:
        column.justify = "right"
    parts = [("whole", result["whole"]), ("last half", result["last_half"])]
    parts += [(f"in {name}", each["whole"]) for name, each in result.get("tiers", {}).items()]
    for name, window in parts:
        for kind in ("token", "block", "full_block"):
            table.add_row(name if kind == "token" else "", kind.replace("_", " "), *cells(window[kind]))
    for number, each in enumerate(result.get("fleet", {}).get("by_replica", ())):
        table.add_row(f"replica {number}", "block", *cells(each["block"]))
    console.print(table)
    show_definitions(result)


def show_curve(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    for each in result["curves"]:
        names = ("capacity, tokens", "token", "block", "full block", "token, last half")
        table = Table(*names, box=None, header_style="dim", pad_edge=False, title=each["policy"], title_justify="left")
        for point in each["points"]:
            kinds = [point["whole"][kind] for kind in ("token", "block", "full_block")] + [point["last_half"]["token"]]
            table.add_row(f"{point['capacity_tokens']:,}", *(percent(kind["ratio"]) for kind in kinds))
        Console(highlight=False).print(table)
    typer.echo(f"\nMore than {result['lru_end_tokens']:,} tokens make no difference to LRU.")
    show_definitions(result)


def show_definitions(result: dict[str, Any]) -> None:
    typer.echo()
    for name, text in {**result["definitions"], "tail": result["trace"]["tail"]}.items():
        typer.echo(f"{name.replace('_', ' ')}: {text}")


def cells(ratio: dict[str, Any]) -> tuple[str, str, str]:
    return f"{ratio['hits']:,}", f"{ratio['of']:,}", percent(ratio["ratio"])


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.2f} %"
