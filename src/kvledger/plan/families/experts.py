"""Families with experts behind a router, of which a token uses a few."""

from __future__ import annotations

from dataclasses import replace

from kvledger.plan.families.parts import (
    FeedForward,
    attention_of,
    experts_of,
    gated,
    projections,
    qkv_bias,
    runs,
    sliding_layers,
    windowed,
)
from kvledger.plan.fields import Fields
from kvledger.plan.layers import LatentAttention, Layers


def mixtral(fields: Fields) -> list[Layers]:
    hidden = fields.size("hidden_size")
    attention = attention_of(fields)
    ffn = experts_of(
        hidden,
        fields.size("intermediate_size"),
        fields.size("num_local_experts"),
        fields.size("num_experts_per_tok"),
    )
    slides = fields.optional_size("sliding_window") is not None
    mixers = windowed(attention, fields, [slides] * fields.size("num_hidden_layers"))
    return runs((each, projections(attention, hidden) + 2 * hidden, ffn) for each in mixers)


def qwen3_moe(fields: Fields) -> list[Layers]:
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    attention = attention_of(fields)
    experts = experts_of(
        hidden,
        fields.size("moe_intermediate_size"),
        fields.size("num_experts"),
        fields.size("num_experts_per_tok"),
    )
    dense = set(fields.get("mlp_only_layers") or ())
    step = fields.size("decoder_sparse_step", default=1)
    parameters = projections(attention, hidden) + 2 * hidden + 2 * attention.head_dim
    return runs(
        (attention, parameters, experts)
        if i not in dense and (i + 1) % step == 0
        else (attention, parameters, gated(hidden, fields.size("intermediate_size")))
        for i in range(num_layers)
    )


def gpt_oss(fields: Fields) -> list[Layers]:
    """Every weight matrix has a bias, and every head a learned sink."""
    hidden, ffn_size = fields.size("hidden_size"), fields.size("intermediate_size")
    num_experts = fields.size("num_local_experts")
    attention = attention_of(fields)
    ffn = experts_of(hidden, ffn_size, num_experts, fields.size("num_experts_per_tok"), extra=num_experts)
    ffn = replace(ffn, expert_parameters=ffn.expert_parameters + 2 * ffn_size + hidden)
    parameters = projections(attention, hidden) + qkv_bias(attention) + 3 * hidden + attention.heads
    sliding = sliding_layers(fields, lambda index: index % 2 == 0)
    return runs((each, parameters, ffn) for each in windowed(attention, fields, sliding))


def llama4(fields: Fields) -> list[Layers]:
    """Three of four layers see their own chunk only; every `interleave_moe_layer_step`th layer has experts."""
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    whole = attention_of(fields)
    chunked = replace(whole, window=fields.size("attention_chunk_size"), is_chunked=True)
    ffn_size, step = fields.size("intermediate_size"), fields.size("interleave_moe_layer_step")
    experts = experts_of(
        hidden, ffn_size, fields.size("num_local_experts"), fields.size("num_experts_per_tok"), shared=ffn_size
    )
    dense = gated(hidden, fields.size("intermediate_size_mlp"))
    parameters = projections(whole, hidden) + 2 * hidden
    return runs(
        (
            whole if (i + 1) % 4 == 0 else chunked,
            parameters,
            experts if (i + 1) % step == 0 else dense,
        )
        for i in range(num_layers)
    )


def glm4_moe(fields: Fields) -> list[Layers]:
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    attention = attention_of(fields)
    parameters = projections(attention, hidden) + 2 * hidden
    if fields.flag("attention_bias"):
        parameters += qkv_bias(attention)
    if fields.flag("use_qk_norm"):
        parameters += 2 * attention.head_dim
    return runs((attention, parameters, ffn) for ffn in _deepseek_ffn(fields, num_layers, has_bias=True))


def _deepseek_ffn(fields: Fields, num_layers: int, *, has_bias: bool) -> list[FeedForward]:
    """Dense at first, then experts with shared ones beside them."""
    hidden, ffn_size = fields.size("hidden_size"), fields.size("moe_intermediate_size")
    num_experts = fields.size("n_routed_experts")
    experts = experts_of(
        hidden,
        ffn_size,
        num_experts,
        fields.size("num_experts_per_tok"),
        shared=fields.count("n_shared_experts") * ffn_size,
        extra=num_experts if has_bias else 0,
    )
    dense = gated(hidden, fields.size("intermediate_size"))
    first, every = fields.count("first_k_dense_replace"), fields.size("moe_layer_freq", default=1)
    return [experts if i >= first and i % every == 0 else dense for i in range(num_layers)]


def _deepseek(fields: Fields, *, has_bias: bool) -> list[Layers]:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    mixer = LatentAttention(
        heads,
        fields.size("kv_lora_rank"),
        fields.size("qk_rope_head_dim"),
        fields.size("qk_nope_head_dim"),
        fields.size("v_head_dim"),
    )
    head_dim, rank = mixer.nope_dim + mixer.rope_dim, fields.optional_size("q_lora_rank")
    queries = hidden * heads * head_dim if rank is None else rank * (hidden + 1 + heads * head_dim)
    keys = hidden * (mixer.rank + mixer.rope_dim) + mixer.rank * (1 + heads * (mixer.nope_dim + mixer.value_dim))
    parameters = queries + keys + heads * mixer.value_dim * hidden + 2 * hidden
    num_layers = fields.size("num_hidden_layers")
    return runs((mixer, parameters, ffn) for ffn in _deepseek_ffn(fields, num_layers, has_bias=has_bias))


def deepseek_v2(fields: Fields) -> list[Layers]:
    return _deepseek(fields, has_bias=False)


def deepseek_v3(fields: Fields) -> list[Layers]:
    return _deepseek(fields, has_bias=True)
