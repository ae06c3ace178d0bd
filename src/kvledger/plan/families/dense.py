"""Families in which every token uses every parameter."""

from __future__ import annotations

from collections.abc import Callable

from kvledger.errors import ModelFileError
from kvledger.plan.families.parts import (
    FeedForward,
    attention_of,
    gated,
    projections,
    qkv_bias,
    runs,
    sliding_layers,
    windowed,
)
from kvledger.plan.fields import Fields
from kvledger.plan.layers import Attention, Layers


def _dense(
    fields: Fields,
    *,
    num_norms: int = 2,
    is_sliding: Callable[[int], bool] = lambda index: False,
    extra: Callable[[Attention], int] = lambda attention: 0,
    kv_heads_default: bool = False,
) -> list[Layers]:
    """Llama and its relatives: gated feed-forward, `num_norms` norms of the hidden size, `extra` weights."""
    hidden = fields.size("hidden_size")
    default = fields.size("num_attention_heads") if kv_heads_default else None
    attention = attention_of(fields, least_kv_heads=default)
    parameters = projections(attention, hidden) + num_norms * hidden + extra(attention)
    if fields.flag("attention_bias"):
        parameters += qkv_bias(attention) + hidden
    ffn = gated(hidden, fields.size("intermediate_size"))
    sliding = sliding_layers(fields, is_sliding)
    return runs((each, parameters, ffn) for each in windowed(attention, fields, sliding))


def llama(fields: Fields) -> list[Layers]:
    return _dense(fields, kv_heads_default=True)


def mistral(fields: Fields) -> list[Layers]:
    slides = fields.optional_size("sliding_window") is not None
    return _dense(fields, is_sliding=lambda index: slides)


def qwen2(fields: Fields) -> list[Layers]:
    first = fields.count("max_window_layers") if fields.flag("use_sliding_window") else None
    return _dense(fields, is_sliding=lambda index: first is not None and index >= first, extra=qkv_bias)


def qwen3(fields: Fields) -> list[Layers]:
    return _dense(fields, extra=lambda attention: 2 * attention.head_dim)


def olmo2(fields: Fields) -> list[Layers]:
    return _dense(fields, extra=lambda attention: (attention.heads + attention.kv_heads) * attention.head_dim)


def gemma2(fields: Fields) -> list[Layers]:
    return _dense(fields, num_norms=4, is_sliding=lambda index: index % 2 == 0)


def gemma3(fields: Fields) -> list[Layers]:
    period = fields.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _dense(
        fields,
        num_norms=4,
        is_sliding=lambda index: (index + 1) % period != 0,
        extra=lambda attention: 2 * attention.head_dim,
    )


def falcon(fields: Fields) -> list[Layers]:
    if not fields.flag("multi_query") or not fields.flag("parallel_attn") or fields.flag("new_decoder_architecture"):
        raise ModelFileError(f"{fields.source}: of the Falcon family only the multi-query models (7B) are known here.")
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    attention = Attention(heads, 1, hidden // heads)
    ffn = FeedForward(8 * hidden * hidden, 4 * hidden)
    return runs([(attention, projections(attention, hidden) + 2 * hidden, ffn)] * fields.size("num_hidden_layers"))
