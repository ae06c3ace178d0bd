"""`kvledger bench`: how fast this machine runs a model."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import typer

bench = typer.Typer(help="Measure speed and memory on this machine.", no_args_is_help=True)


@bench.callback()
def options() -> None:
    """Measure speed and memory on this machine."""


@bench.command()
def engine(
    model: Annotated[str, typer.Option(help="Name of a pulled model, or the path of one.")] = "smollm2",
    mode: Annotated[
        Literal["fast", "exact"], typer.Option(help="Compute with int8 activations, or with float32.")
    ] = "fast",
    kv_dtype: Annotated[
        Literal["f16", "bf16", "f32", "int8"] | None,
        typer.Option(help="How KV is stored.  [default: f16; bf16 if the processor has AMX and the mode is fast]"),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute.  [default: all cores]")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Times that everything is measured; medians are shown.")] = 5,
    json_to: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the medians as JSON ('-': to standard output).")
    ] = None,
) -> None:
    """Measure prefill and decode speed, peak memory, and the time a server takes to start.

    Speeds are tokens per second of the model alone, all sequences together; decode starts at a depth of 128 tokens
    unless the name says otherwise. The memory is that of the whole process, KV pool included.
    """
    from kvledger.bench.engine import EngineBench
    from kvledger.bench.process import peak_rss, start_seconds
    from kvledger.bench.work import REGIMES, WARM_UP
    from kvledger.model.store import resolve

    path = resolve(model)
    measured = EngineBench(path, mode=mode, kv_dtype=kv_dtype, threads=threads)
    measured.seconds(WARM_UP)
    speeds: dict[str, list[float]] = {work.name: [] for work in REGIMES}
    for number in range(rounds):
        for work in REGIMES:
            note(f"round {number + 1} of {rounds}: {work.name}")
            speeds[work.name].append(measured.tokens_per_second(work))
    figures = {f"{name}_tps": statistics.median(values) for name, values in speeds.items()}
    figures["peak_rss_mb"] = peak_rss() / 1e6
    figures["kv_pool_mb"] = measured.pool_bytes / 1e6
    with tempfile.TemporaryDirectory() as kernels:
        note("starting the server with nothing compiled")
        figures["start_cold_s"] = start_seconds(path, Path(kernels))
        note(f"starting it {rounds} times with everything compiled")
        figures["start_warm_s"] = statistics.median(start_seconds(path, Path(kernels)) for _ in range(rounds))

    show(figures, json_to, digits=2)


@bench.command()
def cache(
    model: Annotated[str, typer.Option(help="Name of a pulled model, or the path of one.")] = "smollm2",
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute.  [default: all cores]")] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks in the trie whose bookkeeping is measured.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Times that everything is measured; medians are shown.")] = 3,
    json_to: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the medians as JSON ('-': to standard output).")
    ] = None,
) -> None:
    """Measure what the prompt cache saves, and what it costs.

    ttft_*: seconds to the first token of a prompt of 4,096, of which nothing is cached, or all but 16 tokens are in
    memory, or on disk. acquire_100k_ms: looking up a prompt of 100,000 cached tokens. insert_us, evict_us and
    bytes_per_block: time and memory of the bookkeeping per block of 16 tokens.

    Example: kvledger bench cache --json -
    """
    from kvledger.bench.cache import BookkeepingBench, ReuseBench

    measured: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="kvledger-bench-") as folder:
        reuse = ReuseBench(model, Path(folder), threads=threads, progress=note)
        try:
            for number in range(rounds):
                note(f"round {number + 1} of {rounds}: the first token after 4,096, cold, from memory, from disk")
                measured.append(reuse.seconds())
        finally:
            reuse.close()
    figures = {name: statistics.median(each[name] for each in measured) for name in measured[0]}
    bookkeeping = BookkeepingBench(blocks)
    note(f"bookkeeping of {bookkeeping.num_blocks} blocks, {rounds} times")
    show(figures | bookkeeping.figures(rounds), json_to, digits=4)


def show(figures: dict[str, float], json_to: Path | None, *, digits: int) -> None:
    """Print figures as a table, or as JSON."""
    written = json.dumps({name: round(value, digits) for name, value in figures.items()}, indent=2)
    if json_to == Path("-"):
        typer.echo(written)
        return
    for name, value in figures.items():
        typer.echo(f"{name:<22} {value:>10.{digits}f}")
    if json_to:
        json_to.write_text(written + "\n", encoding="utf-8")


def note(message: str) -> None:
    """Progress, on standard error."""
    typer.echo(message, err=True)
