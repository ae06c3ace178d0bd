"""Families that mix attention with layers whose memory does not grow."""

from __future__ import annotations

from kvledger.errors import ModelFileError
from kvledger.plan.families.parts import FULL, attention_of, experts_of, gated, projections, runs
from kvledger.plan.fields import Fields
from kvledger.plan.layers import Layers, Recurrent


def qwen3_next(fields: Fields) -> list[Layers]:
    """Gated delta nets, and every fourth layer attention with a gate as wide as its queries."""
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    keys = fields.size("linear_num_key_heads") * fields.size("linear_key_head_dim")
    value_heads, value_dim = fields.size("linear_num_value_heads"), fields.size("linear_value_head_dim")
    values, kernel = value_heads * value_dim, fields.size("linear_conv_kernel_dim")
    net = Recurrent(
        "gated delta net",
        state=value_heads * fields.size("linear_key_head_dim") * value_dim,
        convolution=(2 * keys + values) * (kernel - 1),
    )
    net_parameters = hidden * (2 * keys + 2 * values + 2 * value_heads) + (2 * keys + values) * kernel
    net_parameters += 2 * value_heads + value_dim + values * hidden + 2 * hidden
    attention = attention_of(fields)
    width = attention.heads * attention.head_dim
    parameters = projections(attention, hidden) + hidden * width + 2 * attention.head_dim + 2 * hidden
    shared = fields.size("shared_expert_intermediate_size")
    ffn = experts_of(
        hidden,
        fields.size("moe_intermediate_size"),
        fields.size("num_experts"),
        fields.size("num_experts_per_tok"),
        shared=shared,
        extra=hidden,
    )
    kinds = fields.names("layer_types", num_layers)
    if kinds is None:
        every = fields.size("full_attention_interval")
        kinds = [FULL if (i + 1) % every == 0 else "linear_attention" for i in range(num_layers)]
    return runs((attention, parameters, ffn) if kind == FULL else (net, net_parameters, ffn) for kind in kinds)


def jamba(fields: Fields) -> list[Layers]:
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    inner, state = fields.size("mamba_expand") * hidden, fields.size("mamba_d_state")
    kernel, rank = fields.size("mamba_d_conv"), fields.size("mamba_dt_rank")
    mamba = Recurrent("Mamba", state=inner * state, convolution=inner * (kernel - 1))
    mamba_parameters = hidden * 2 * inner + inner * (kernel + 1) + inner * (rank + 2 * state) + (rank + 1) * inner
    mamba_parameters += inner * state + inner + inner * hidden + rank + 2 * state + 2 * hidden
    attention = attention_of(fields)
    parameters = projections(attention, hidden) + 2 * hidden
    ffn_size = fields.size("intermediate_size")
    experts = experts_of(hidden, ffn_size, fields.size("num_experts"), fields.size("num_experts_per_tok"))
    period, offset = fields.size("attn_layer_period"), fields.count("attn_layer_offset")
    expert_period, expert_offset = fields.size("expert_layer_period"), fields.count("expert_layer_offset")
    return runs(
        (
            *((attention, parameters) if i % period == offset else (mamba, mamba_parameters)),
            experts if i % expert_period == expert_offset else gated(hidden, ffn_size),
        )
        for i in range(num_layers)
    )


def granite_hybrid(fields: Fields) -> list[Layers]:
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    heads, head_dim = fields.size("mamba_n_heads"), fields.size("mamba_d_head")
    state, kernel = fields.size("mamba_d_state"), fields.size("mamba_d_conv")
    inner = heads * head_dim
    convolved = inner + 2 * fields.size("mamba_n_groups") * state
    mamba = Recurrent("Mamba-2", state=inner * state, convolution=convolved * (kernel - 1))
    mamba_parameters = hidden * (inner + convolved + heads) + convolved * (kernel + 1) + 3 * heads + inner
    mamba_parameters += inner * hidden + 2 * hidden
    attention = attention_of(fields)
    parameters = projections(attention, hidden) + 2 * hidden
    shared = fields.size("shared_intermediate_size")
    num_experts = fields.count("num_local_experts")
    ffn = gated(hidden, shared)
    if num_experts:
        ffn = experts_of(
            hidden,
            fields.size("intermediate_size"),
            num_experts,
            fields.size("num_experts_per_tok"),
            shared=shared,
        )
    kinds = fields.names("layer_types", num_layers)
    if kinds is None:
        raise fields.missing("layer_types", 'a list of "mamba" and "attention", one for each layer,')
    unknown = next((kind for kind in kinds if kind not in ("mamba", "attention")), None)
    if unknown is not None:
        raise ModelFileError(f"{fields.source}: layers of the kind {unknown!r} are not known in this family.")
    return runs(
        (attention, parameters, ffn) if kind == "attention" else (mamba, mamba_parameters, ffn) for kind in kinds
    )


def minimax(fields: Fields) -> list[Layers]:
    """Lightning attention, and where `attn_type_list` says 1 softmax attention."""
    hidden, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    attention = attention_of(fields)
    width = attention.heads * attention.head_dim
    lightning = Recurrent("lightning attention", state=width * attention.head_dim)
    ffn = experts_of(
        hidden,
        fields.size("intermediate_size"),
        fields.size("num_local_experts"),
        fields.size("num_experts_per_tok"),
    )
    kinds = fields.get("attn_type_list")
    if not isinstance(kinds, list) or len(kinds) != num_layers or not set(kinds) <= {0, 1}:
        raise fields.missing("attn_type_list", f"a list of {num_layers} zeros and ones")
    parameters = projections(attention, hidden) + 2 * hidden
    return runs(
        (attention, parameters, ffn) if kind else (lightning, 5 * hidden * width + width + 2 * hidden, ffn)
        for kind in kinds
    )
