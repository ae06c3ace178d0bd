"""A roofline as JSON and as a page."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from kvledger.page.blocks import Block, Heading, LineChart, Page, Paragraph, Series, Table
from kvledger.plan.gpu import GpuPlan, Phase
from kvledger.plan.report import size

_NOTE = (
    "Times are floors: peak rates without sparsity, the vendor's bandwidth, nothing for the way between accelerators,"
    " scheduling or idle time. Give --efficiency for the share of the peaks that you measure."
)


def gpu_record(plan: GpuPlan) -> dict[str, Any]:
    """A roofline as plain values. Money is in strings, in the currency of the price."""
    memory, batch = plan.memory, plan.decode_batch
    fresh = memory.context - plan.cached_tokens
    return {
        "model": plan.shape.name,
        "gpu": plan.accelerator.name,
        "gpus": memory.accelerators,
        "context": memory.context,
        "cached_tokens": plan.cached_tokens,
        "batch": batch,
        "arithmetic": plan.arithmetic,
        "peak_flops": plan.peak_flops,
        "bandwidth_bytes_per_second": plan.bandwidth,
        "ridge_flops_per_byte": plan.ridge,
        "prefill": _phase(plan.prefill(memory.context)),
        "cached_prefill": _phase(plan.prefill(fresh, plan.cached_tokens)),
        "decode": _phase(plan.decode(batch)),
        "seconds_per_input_token": plan.input_seconds,
        "seconds_per_cached_token": plan.cached_seconds,
        "seconds_per_output_token": plan.output_seconds(batch),
        "cost_per_million": {
            "input": _money(plan.cost(plan.input_seconds)),
            "cached_input": _money(plan.cost(plan.cached_seconds)),
            "output": _money(plan.cost(plan.output_seconds(batch))),
        },
        "output_to_input": plan.output_seconds(batch) / plan.input_seconds,
        "largest_batch_that_fits": plan.largest_batch,
        "compute_bound_from_batch": plan.critical_batch,
        "by_batch": [
            {
                "batch": each,
                "seconds_per_step": plan.decode(each).seconds,
                "bound": plan.decode(each).bound,
                "output_cost_per_million": _money(plan.cost(plan.output_seconds(each))),
            }
            for each in plan.batches()
        ],
        "warnings": list(memory.warnings),
        "assumptions": [_NOTE, *memory.assumptions],
    }


def gpu_page(plan: GpuPlan) -> Page:
    """A roofline for a person."""
    memory, batch = plan.memory, plan.decode_batch
    context, cached = memory.context, plan.cached_tokens
    name = plan.accelerator.title if memory.accelerators == 1 else f"{memory.accelerators} x {plan.accelerator.title}"
    blocks: list[Block] = [
        Paragraph(
            f"{plan.shape.source}. {name}: {plan.peak_flops / 1e12:,.0f} TFLOP/s in {plan.arithmetic},"
            f" {plan.bandwidth / 1e9:,.0f} GB/s; arithmetic takes longer from {plan.ridge:.0f} operations per byte on."
        )
    ]
    blocks += [Paragraph(warning, is_warning=True) for warning in memory.warnings]
    phases = [
        (f"prompt of {context:,}, nothing cached", plan.prefill(context)),
        (f"the same, {cached:,} cached", plan.prefill(context - cached, cached)),
        ("one token of one answer", plan.decode(1)),
        (f"one token of {batch:,} answers", plan.decode(batch)),
    ]
    columns = ("", "operations", "moved", "op/byte", "arithmetic", "memory", "waits for")
    blocks.append(Table(columns, [(each, *_cells(phase)) for each, phase in phases], numeric=range(1, 6)))
    blocks += [Heading("A million tokens"), _costs(plan), Heading("Why output is dearer"), Paragraph(_why(plan))]
    blocks += [Heading("By batch"), *_by_batch(plan), Heading("What this rests on")]
    blocks.append(Paragraph("\n".join((_NOTE, *memory.assumptions))))
    return Page(f"Roofline of {plan.shape.name} on {name}", blocks)


def _phase(phase: Phase) -> dict[str, Any]:
    return {
        "flops": phase.flops,
        "bytes": phase.bytes,
        "flops_per_byte": phase.intensity,
        "compute_seconds": phase.compute_seconds,
        "memory_seconds": phase.memory_seconds,
        "seconds": phase.seconds,
        "bound": phase.bound,
    }


def _cells(phase: Phase) -> tuple[str, ...]:
    return (
        f"{phase.flops / 1e9:,.4g} G",
        size(phase.bytes),
        f"{phase.intensity:,.1f}",
        _duration(phase.compute_seconds),
        _duration(phase.memory_seconds),
        "arithmetic" if phase.bound == "compute" else "memory",
    )


def _costs(plan: GpuPlan) -> Table:
    kinds = (
        ("input", plan.input_seconds),
        ("cached input", plan.cached_seconds),
        (f"output, {plan.decode_batch:,} answers at once", plan.output_seconds(plan.decode_batch)),
    )
    rows = [
        (name, _duration(seconds * 1e6), _money(plan.cost(seconds)) or "-", f"{seconds / plan.input_seconds:.3g} x")
        for name, seconds in kinds
    ]
    return Table(("", "machine time", "cost", "against input"), rows)


def _why(plan: GpuPlan) -> str:
    batch = plan.decode_batch
    prefill, alone, together = plan.prefill(plan.memory.context), plan.decode(1), plan.decode(batch)
    critical = plan.critical_batch
    text = (
        f"A prompt does {prefill.intensity:,.0f} operations for every byte it reads, because its tokens share the"
        f" weights; a single answer does {alone.intensity:.1f}, for it reads all of them for one token. {batch:,}"
        f" answers at once share the weights again, but each reads keys and values of its own:"
        f" {together.intensity:,.1f}.\n"
    )
    if critical is None:
        return text + (
            "At this length no batch makes decoding wait for arithmetic: reading one request's keys and values takes"
            " longer than the arithmetic of its token."
        )
    held = plan.largest_batch
    reach = "which fits" if critical <= held else f"but only {held:,} fit"
    return text + f"Decoding stops waiting for memory at a batch of {critical:,}, {reach}."


def _by_batch(plan: GpuPlan) -> list[Block]:
    rows = []
    for batch in plan.batches():
        phase = plan.decode(batch)
        rows.append(
            (
                f"{batch:,}",
                _duration(phase.seconds),
                f"{batch / phase.seconds:,.0f}",
                _money(plan.cost(plan.output_seconds(batch))) or "-",
                "arithmetic" if phase.bound == "compute" else "memory",
            )
        )
    table = Table(("batch", "step", "tokens/s", "cost of a million", "waits for"), rows, numeric=range(4))
    points = [(float(batch), 1e6 * plan.output_seconds(batch)) for batch in plan.batches()]
    ends = (points[0][0], points[-1][0])
    lines = [Series("output", points)]
    lines.append(Series("input", [(end, 1e6 * plan.input_seconds) for end in ends]))
    if plan.cached_seconds > 0:
        lines.append(Series("cached input", [(end, 1e6 * plan.cached_seconds) for end in ends]))
    chart = LineChart(
        "Machine seconds for a million tokens", "answers at once", "seconds", lines, log_x=True, log_y=True
    )
    return [table, chart] if len(points) > 1 else [table]


def _duration(seconds: float) -> str:
    for limit, unit, factor in ((1e-3, "us", 1e6), (1.0, "ms", 1e3)):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds:.3g} s"


def _money(amount: Decimal | None) -> str | None:
    return None if amount is None else format(amount, "f")
