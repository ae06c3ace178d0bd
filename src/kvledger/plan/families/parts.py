"""What layers are put together from, and how many parameters each part has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvledger.errors import ModelFileError
from kvledger.plan.fields import Fields
from kvledger.plan.layers import Attention, Layers, Mixer

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class FeedForward:
    """The second half of a layer; as in `Layers`."""

    parameters: int
    ffn_size: int
    expert_parameters: int = 0
    num_experts: int = 0
    experts_per_token: int = 0


def runs(layers: Iterable[tuple[Mixer, int, FeedForward]]) -> list[Layers]:
    """Equal layers counted; each comes as its mixer, the parameters of mixer and norms, and its second half."""
    counted = Counter(layers)
    return [
        Layers(
            count,
            mixer,
            parameters + ffn.parameters,
            ffn.ffn_size,
            ffn.expert_parameters,
            ffn.num_experts,
            ffn.experts_per_token,
        )
        for (mixer, parameters, ffn), count in counted.items()
    ]


def attention_of(fields: Fields, *, least_kv_heads: int | None = None) -> Attention:
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    kv_heads = fields.size("num_key_value_heads", default=least_kv_heads)
    if heads % kv_heads:
        raise fields.missing("num_key_value_heads", f"a divisor of the {heads} query heads")
    if fields.get("head_dim") is None and hidden % heads:
        raise fields.missing("head_dim", f"a head size ({hidden} does not divide into {heads} heads)")
    return Attention(heads, kv_heads, fields.size("head_dim", default=hidden // heads))


def projections(attention: Attention, hidden: int) -> int:
    """Parameters of the query, key, value and output matrices."""
    width = attention.heads * attention.head_dim
    return hidden * (2 * width + attention.elements_per_token)


def qkv_bias(attention: Attention) -> int:
    return attention.heads * attention.head_dim + attention.elements_per_token


def windowed(attention: Attention, fields: Fields, is_sliding: Sequence[bool]) -> list[Attention]:
    """One attention per layer, with the window where a layer slides."""
    if not any(is_sliding):
        return [attention] * len(is_sliding)
    sliding = replace(attention, window=fields.size("sliding_window"))
    return [sliding if slides else attention for slides in is_sliding]


def sliding_layers(fields: Fields, otherwise: Callable[[int], bool]) -> list[bool]:
    """Which layers slide: what `layer_types` says, else what the family does by index."""
    num_layers = fields.size("num_hidden_layers")
    kinds = fields.names("layer_types", num_layers)
    if kinds is None:
        return [otherwise(i) for i in range(num_layers)]
    unknown = next((kind for kind in kinds if kind not in (FULL, SLIDING)), None)
    if unknown is not None:
        raise ModelFileError(f"{fields.source}: layers of the kind {unknown!r} are not known in this family.")
    return [kind == SLIDING for kind in kinds]


def gated(hidden: int, ffn_size: int) -> FeedForward:
    """Gate, up and down (SwiGLU, GeGLU)."""
    return FeedForward(3 * hidden * ffn_size, ffn_size)


def experts_of(
    hidden: int, ffn_size: int, num_experts: int, per_token: int, *, shared: int = 0, extra: int = 0
) -> FeedForward:
    """Gated experts of `ffn_size` behind a router; a shared gated part of width `shared`; `extra` further weights."""
    return FeedForward(
        hidden * num_experts + 3 * hidden * shared + extra,
        per_token * ffn_size + shared,
        3 * hidden * ffn_size,
        num_experts,
        per_token,
    )
