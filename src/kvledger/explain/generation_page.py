"""A generation, step by step, as JSON and as a page."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from kvledger.explain.generation import MOST_LOOKED_AT, Generation, Work, total_multiply_adds
from kvledger.explain.pieces import visible
from kvledger.page.blocks import Block, Grid, Heading, HeatMap, LineChart, Page, Paragraph, Series, Table
from kvledger.text.tokenizer import Tokenizer

_CHART_LENGTH = 512


def generation_record(generation: Generation, tokenizer: Tokenizer) -> dict[str, Any]:
    """A generation as plain values; times in seconds, sizes in bytes."""
    attention = generation.attention
    return {
        "prompt_tokens": generation.prompt_tokens,
        "tokens": [{"id": id, "text": _text(tokenizer, id)} for id in generation.tokens],
        "text": tokenizer.decode(generation.tokens),
        "kv_bytes_per_token": generation.kv_bytes_per_token,
        "steps": [
            {
                "length": step.length,
                "token": step.token,
                "text": _text(tokenizer, step.token),
                "same_logits": step.is_same,
                "with_cache": _work(step.with_cache),
                "without_cache": _work(step.without_cache),
            }
            for step in generation.steps
        ],
        "appended": [
            {"layer": each.layer, "bytes": each.bytes, "key_norm": each.key_norm, "value_norm": each.value_norm}
            for each in generation.appended
        ],
        "reference_agrees": generation.agreed,
        "attention": None
        if attention is None
        else {
            "layer": generation.layer,
            "heads": [[[round(x, 4) for x in row] for row in head] for head in attention.tolist()],
        },
    }


def generation_page(generation: Generation, tokenizer: Tokenizer, model_name: str) -> Page:
    """A generation for a person."""
    config, steps = generation.config, generation.steps
    first = generation.prompt_tokens
    blocks: list[Block] = [
        Paragraph(f"{model_name}: {tokenizer.decode(generation.tokens)!r}"),
        Paragraph(
            f"{config.num_layers} layers, {config.num_heads} query heads, {config.num_kv_heads} KV heads of"
            f" {config.head_dim}: each token leaves {generation.kv_bytes_per_token:,} bytes of keys and values. Every"
            " step below was run twice: with the keys and values of the steps before it, and from the first token on."
        ),
        Heading("Step by step"),
        Paragraph(
            "With the cache: tokens computed, bytes of keys and values read and kept, thousand million multiply-adds"
            " (G m-a), milliseconds. Without: tokens computed again, multiply-adds, milliseconds."
        ),
        _steps(generation, tokenizer),
        Paragraph(_same(generation)),
        Heading("Cost against length"),
        _computed_chart(generation),
        _measured_chart(generation),
        Heading(f"Appended in the last step, layer by layer (position {len(generation.tokens) - 2})"),
        Table(
            ("layer", "bytes", "length of key", "length of value"),
            [
                (str(each.layer), f"{each.bytes:,}", f"{each.key_norm:.3f}", f"{each.value_norm:.3f}")
                for each in generation.appended
            ],
            numeric=range(4),
        ),
        Heading(f"Who looks at whom: layer {generation.layer}, head by head"),
        *_heat_maps(generation, tokenizer),
    ]
    total_with = sum(step.with_cache.multiply_adds for step in steps)
    total_without = sum(step.without_cache.multiply_adds for step in steps)
    blocks.insert(
        2,
        Paragraph(
            f"{first} tokens of prompt, {len(steps)} steps: {_giga(total_with)} multiply-adds with the cache,"
            f" {_giga(total_without)} without, {total_without / total_with:.1f} times as many."
        ),
    )
    return Page("Generation with and without a KV cache", blocks)


def _steps(generation: Generation, tokenizer: Tokenizer) -> Table:
    rows = []
    for step in generation.steps:
        kept, fresh = step.with_cache, step.without_cache
        rows.append(
            (
                str(step.length),
                visible(tokenizer.token_bytes(step.token)),
                str(kept.tokens),
                f"{kept.kv_read:,}",
                f"{kept.kv_written:,}",
                f"{kept.multiply_adds / 1e9:.3f}",
                f"{kept.seconds * 1e3:.1f}",
                str(fresh.tokens),
                f"{fresh.multiply_adds / 1e9:.3f}",
                f"{fresh.seconds * 1e3:.1f}",
            )
        )
    columns = ("after", "token", "computed", "read", "kept", "G m-a", "ms", "again", "G m-a", "ms")
    return Table(columns, rows, numeric=(0, 2, 3, 4, 5, 6, 7, 8, 9))


def _same(generation: Generation) -> str:
    num_same = sum(step.is_same for step in generation.steps)
    text = f"The logits of both ways are equal bit for bit in {num_same} of {len(generation.steps)} steps."
    if generation.agreed is not None:
        text += (
            f" The float64 reference, which knows no cache, chooses the same token in {generation.agreed}: the server's"
            " kernels round activations to 8 bits."
        )
    return text


def _computed_chart(generation: Generation) -> LineChart:
    """By formula, from the prompt to a few hundred tokens: what the shape of the two curves is about."""
    prompt = generation.prompt_tokens
    longest = min(max(_CHART_LENGTH, len(generation.tokens)), generation.config.context_length)
    lengths = sorted({prompt + 1, *range(prompt + 1, longest, max(1, longest // 32)), longest})
    totals = [total_multiply_adds(generation.config, prompt, length) for length in lengths]
    return LineChart(
        "Multiply-adds from the prompt to a text of this length: linear with the cache, quadratic without",
        "tokens of the text",
        "multiply-adds",
        [
            Series("without", [(float(at), float(total)) for at, (_, total) in zip(lengths, totals, strict=True)]),
            Series("with cache", [(float(at), float(total)) for at, (total, _) in zip(lengths, totals, strict=True)]),
        ],
    )


def _measured_chart(generation: Generation) -> LineChart:
    lengths = [float(step.length + 1) for step in generation.steps]
    with_cache = accumulate(step.with_cache.seconds for step in generation.steps)
    without = accumulate(step.without_cache.seconds for step in generation.steps)
    return LineChart(
        "Measured on this machine: seconds until the text has this length",
        "tokens of the text",
        "seconds",
        [
            Series("without", list(zip(lengths, without, strict=True))),
            Series("with cache", list(zip(lengths, with_cache, strict=True))),
        ],
    )


def _heat_maps(generation: Generation, tokenizer: Tokenizer) -> list[Block]:
    attention = generation.attention
    if attention is None:
        return [Paragraph(f"Left out: the text has more than {MOST_LOOKED_AT} tokens.")]
    names = [visible(tokenizer.token_bytes(id)) for id in generation.tokens[:-1]]
    maps = []
    for head, shares in enumerate(attention.tolist()):
        values = [[share if j <= i else None for j, share in enumerate(row)] for i, row in enumerate(shares)]
        maps.append(HeatMap(f"head {head}", names, names, values))
    note = (
        "Each row is a token and shows how it divides its attention between itself and those before it: the darker, the"
        " more. The columns are the keys that the cache keeps. Worked out by the float64 reference."
    )
    return [Paragraph(note), Grid(maps)]


def _work(work: Work) -> dict[str, Any]:
    return {
        "tokens": work.tokens,
        "multiply_adds": work.multiply_adds,
        "kv_bytes_read": work.kv_read,
        "kv_bytes_written": work.kv_written,
        "seconds": work.seconds,
    }


def _text(tokenizer: Tokenizer, id: int) -> str:
    return tokenizer.token_bytes(id).decode("utf-8", "replace")


def _giga(number: int) -> str:
    return f"{number / 1e9:.3f} G"
