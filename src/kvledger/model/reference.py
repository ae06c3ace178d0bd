"""A textbook transformer in float64: no cache, no batches, no tricks. What it returns is what every other path must.

The model is the Llama family's: pre-norm with RMSNorm (Zhang and Sennrich, arXiv:1910.07467), rotary positions (Su et
al., arXiv:2104.09864), grouped-query attention (Ainslie et al., arXiv:2305.13245) and SwiGLU (Shazeer,
arXiv:2002.05202). Weights are dequantised exactly; everything after that is double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvledger.model.config import ModelConfig, rope_frequencies
from kvledger.model.formats import dequantise
from kvledger.model.weights import Weights

Array = NDArray[np.float64]

Watch = Callable[[int, int, Array], None]
"""Is told, for a layer and a head, the attention weights [position, position]: who looks at whom, and how much."""


def logits(weights: Weights, tokens: Sequence[int], watch: Watch | None = None) -> Array:
    """Return the logits after each of `tokens`, [len(tokens), vocab_size]; the first is at position 0."""
    config = weights.config
    embedding = _matrix(weights, "token_embd.weight")
    x = embedding[np.asarray(tokens, dtype=np.int64)]
    for layer in range(config.num_layers):
        normed = rms_norm(x, _vector(weights, f"blk.{layer}.attn_norm.weight"), config)
        x = x + attention(weights, layer, normed, watch)
        x = x + swiglu(weights, layer, rms_norm(x, _vector(weights, f"blk.{layer}.ffn_norm.weight"), config))
    head = embedding if config.tied_head else _matrix(weights, "output.weight")
    result: Array = rms_norm(x, _vector(weights, "output_norm.weight"), config) @ head.T
    return result


def rms_norm(x: Array, gain: Array, config: ModelConfig) -> Array:
    """Scale each row of `x` to a root mean square of one, then each column by its gain."""
    mean_square: Array = np.mean(x**2, axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + config.norm_eps) * gain


def attention(weights: Weights, layer: int, x: Array, watch: Watch | None = None) -> Array:
    """Let each position look at itself and those before it (within the sliding window, if there is one)."""
    config, block = weights.config, f"blk.{layer}"
    q = _project(weights, f"{block}.attn_q", x).reshape(len(x), config.num_heads, config.head_dim)
    k = _project(weights, f"{block}.attn_k", x).reshape(len(x), config.num_kv_heads, config.head_dim)
    v = _project(weights, f"{block}.attn_v", x).reshape(len(x), config.num_kv_heads, config.head_dim)
    if config.qk_norm:
        q = rms_norm(q, _vector(weights, f"{block}.attn_q_norm.weight"), config)
        k = rms_norm(k, _vector(weights, f"{block}.attn_k_norm.weight"), config)
    q, k = rotate(q, config), rotate(k, config)

    position = np.arange(len(x))
    distance = position[:, None] - position[None, :]
    visible = (distance >= 0) & (distance < (config.sliding_window or len(x)))
    heads = []
    for head in range(config.num_heads):
        kv_head = head * config.num_kv_heads // config.num_heads  # consecutive query heads share one
        scores = q[:, head] @ k[:, kv_head].T / np.sqrt(config.head_dim)
        shares = softmax(np.where(visible, scores, -np.inf))
        if watch is not None:
            watch(layer, head, shares)
        heads.append(shares @ v[:, kv_head])
    return _project(weights, f"{block}.attn_output", np.concatenate(heads, axis=-1))


def rotate(x: Array, config: ModelConfig) -> Array:
    """Turn elements i and i + head_dim / 2 of each head by position x frequency i; `x` is [position, head, element]."""
    angle = (np.arange(len(x))[:, None] * rope_frequencies(config))[:, None, :]
    first, second = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def softmax(scores: Array) -> Array:
    """Turn each row of scores into weights that sum to one."""
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    total: Array = weights.sum(axis=-1, keepdims=True)
    return weights / total


def swiglu(weights: Weights, layer: int, x: Array) -> Array:
    """The feed-forward part: down(silu(gate(x)) * up(x)), where silu(z) = z / (1 + exp(-z))."""
    gate = _project(weights, f"blk.{layer}.ffn_gate", x)
    up = _project(weights, f"blk.{layer}.ffn_up", x)
    return _project(weights, f"blk.{layer}.ffn_down", gate / (1 + np.exp(-gate)) * up)


def _project(weights: Weights, name: str, x: Array) -> Array:
    y = x @ _matrix(weights, f"{name}.weight").T
    return y + _vector(weights, f"{name}.bias") if f"{name}.bias" in weights else y


def _matrix(weights: Weights, name: str) -> Array:
    return dequantise(weights.tensor(name)).astype(np.float64)


def _vector(weights: Weights, name: str) -> Array:
    return weights.vector(name).astype(np.float64)
