"""Plans as JSON and as pages."""

from __future__ import annotations

from typing import Any

from kvledger.page.blocks import Block, Heading, LineChart, Page, Paragraph, Series, Table
from kvledger.plan.memory import BLOCK, MemoryPlan


def memory_record(plan: MemoryPlan) -> dict[str, Any]:
    """A memory plan as plain values; sizes in bytes, all accelerators together unless the name says otherwise."""
    shape, accelerator = plan.shape, plan.accelerator
    return {
        "model": {
            "name": shape.name,
            "source": shape.source,
            "parameters": shape.parameters,
            "context_length": shape.context_length,
            "layers": [
                {
                    "count": run.count,
                    "kind": run.mixer.kind,
                    "kv_elements_per_token": run.mixer.elements_per_token,
                    "state_bytes": run.mixer.state_bytes,
                }
                for run in shape.layers
            ],
        },
        "context": plan.context,
        "concurrency": plan.concurrency,
        "kv_dtype": plan.kv_dtype,
        "weight_dtype": plan.weight_dtype or shape.weight_dtype,
        "weights_bytes": plan.weights_bytes,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_bytes_per_token_at_context": shape.kv_bytes_per_token(plan.kv_dtype, plan.context),
        "state_bytes_per_request": shape.state_bytes,
        "kv_bytes_per_request": plan.kv_bytes_per_request,
        "kv_bytes_total": plan.kv_bytes_total,
        "activations_bytes": plan.activations_bytes,
        "gpu": None if accelerator is None else accelerator.name,
        "gpus": plan.accelerators,
        "gpu_memory_bytes": None if accelerator is None else accelerator.memory,
        "usable_bytes_per_gpu": plan.usable_bytes,
        "needed_bytes_per_gpu": plan.bytes_per_accelerator(-(-plan.context // BLOCK) * BLOCK, plan.concurrency),
        "fits": plan.fits,
        "max_concurrency": plan.max_concurrency,
        "allocation": {
            "paged": {
                "block_tokens": BLOCK,
                "bytes_per_request": plan.paged_bytes_per_request,
                "wasted_bytes_per_request": plan.paged_bytes_per_request - plan.kv_bytes_per_request,
                "max_concurrency": plan.max_concurrency,
            },
            "contiguous": {
                "reserved_tokens": plan.reserved_context,
                "bytes_per_request": plan.contiguous_bytes_per_request,
                "wasted_bytes_per_request": plan.contiguous_bytes_per_request - plan.kv_bytes_per_request,
                "max_concurrency": plan.max_concurrency_contiguous,
            },
        },
        "warnings": list(plan.warnings),
        "assumptions": list(plan.assumptions),
    }


def memory_page(plan: MemoryPlan) -> Page:
    """A memory plan for a person."""
    shape = plan.shape
    blocks: list[Block] = [Paragraph(f"{shape.source}. {shape.parameters:,} parameters in {shape.num_layers} layers.")]
    blocks += [Paragraph(warning, is_warning=True) for warning in plan.warnings]
    blocks.append(
        Table(
            ("layers", "kind", "elements per token", "state per request"),
            [
                (
                    str(run.count),
                    run.mixer.kind,
                    f"{run.mixer.elements_per_token:,}" if run.mixer.elements_per_token else "-",
                    size(run.mixer.state_bytes) if run.mixer.state_bytes else "-",
                )
                for run in shape.layers
            ],
            numeric=(0, 2, 3),
        )
    )
    rows = [
        ("weights", size(plan.weights_bytes), f"{plan.weights_bytes:,}"),
        ("keys and values of a token", size(plan.kv_bytes_per_token), f"{plan.kv_bytes_per_token:,}"),
        (f"of a request of {plan.context:,}", size(plan.kv_bytes_per_request), f"{plan.kv_bytes_per_request:,}"),
        (f"of {plan.concurrency:,} requests", size(plan.kv_bytes_total), f"{plan.kv_bytes_total:,}"),
        ("activations, about", size(plan.activations_bytes), f"{plan.activations_bytes:,}"),
    ]
    blocks += [Heading("Memory"), Table(("", "", "bytes"), rows)]
    if plan.accelerator is not None:
        blocks.append(Paragraph(_verdict(plan)))
    blocks += [Heading("Paged against contiguous"), _allocation(plan), Heading("By context and concurrency")]
    blocks += [*_map_of_memory(plan), Heading("What this rests on")]
    blocks.append(Paragraph("\n".join(plan.assumptions)))
    return Page(f"Memory of {shape.name}", blocks)


def size(number: int) -> str:
    """Bytes in binary units."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{number} B" if unit == "B" else f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:,.2f} GiB"


def _verdict(plan: MemoryPlan) -> str:
    assert plan.accelerator is not None
    assert plan.usable_bytes is not None
    name = plan.accelerator.title if plan.accelerators == 1 else f"{plan.accelerators} x {plan.accelerator.title}"
    needed = plan.bytes_per_accelerator(-(-plan.context // BLOCK) * BLOCK, plan.concurrency)
    of_each = "" if plan.accelerators == 1 else " on each"
    verdict = f"fits on {name}" if plan.fits else f"does not fit on {name}"
    return (
        f"This {verdict}: {size(needed)} of {size(plan.usable_bytes)} usable{of_each}. At this length"
        f" {plan.max_concurrency:,} requests fit at once."
    )


def _allocation(plan: MemoryPlan) -> Table:
    used = plan.kv_bytes_per_request
    rows = []
    for name, held, room in (
        (f"paged, blocks of {BLOCK}", plan.paged_bytes_per_request, plan.max_concurrency),
        (
            f"contiguous, {plan.reserved_context:,} tokens set aside",
            plan.contiguous_bytes_per_request,
            plan.max_concurrency_contiguous,
        ),
    ):
        waste = held - used
        share = waste / held if held else 0.0
        rows.append((name, size(held), size(waste), f"{share:.1%}", "-" if room is None else f"{room:,}"))
    return Table(("one request", "holds", "wasted", "", "requests that fit"), rows)


def _map_of_memory(plan: MemoryPlan) -> list[Block]:
    """The table and the chart: what each accelerator needs, by context (powers of two) and concurrency."""
    contexts = sorted({2**i for i in range(9, 31) if 2**i <= plan.reserved_context} | {plan.context})[-9:]
    asked = plan.concurrency
    loads = sorted({1, max(1, asked // 4), asked, 2 * asked, 4 * asked})
    limit = plan.usable_bytes
    rows, tones = [], []
    for context in contexts:
        needs = [plan.bytes_per_accelerator(context, load) for load in loads]
        rows.append((f"{context:,}", *map(size, needs)))
        tones.append(("", *("" if limit is None else "good" if need <= limit else "bad" for need in needs)))
    table = Table(
        ("context", *(f"{load:,} at once" for load in loads)), rows, numeric=range(len(loads) + 1), tones=tones
    )
    lines = [
        Series(
            f"{load:,} at once",
            [(float(context), float(plan.bytes_per_accelerator(context, load))) for context in contexts],
        )
        for load in loads
    ]
    name = "usable" if plan.accelerator is None else f"usable, {plan.accelerator.name}"
    chart = LineChart(
        "Bytes on each accelerator: weights, keys and values, activations",
        "tokens of each request",
        "bytes",
        lines,
        log_x=True,
        log_y=True,
        limit=None if limit is None else (name, float(limit)),
    )
    return [table, chart]
