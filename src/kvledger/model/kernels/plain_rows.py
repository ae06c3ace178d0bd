"""`rows.py` in plain loops: norm, quantisation, gating, rotary positions."""

from __future__ import annotations

from functools import cache

import numpy as np

from kvledger.model.kernels.attention import BLOCK
from kvledger.model.kernels.intrinsics import fma, peek_f32, peek_i8, poke_f32, poke_i8, poke_u16
from kvledger.model.kernels.jit import kept, kept_address
from kvledger.model.kernels.panels import GROUP
from kvledger.model.kernels.plain_activations import STEP, group_facts, inverse_of, peak_of, quant_group, store_group
from kvledger.model.kernels.plain_numbers import ONE, Values, exp, f32, float_to_bf16, poke_float, sum_lanes
from kvledger.model.kernels.rows import LANES, HeadShape, lanes_of

_GROUP_BYTES = 4 * GROUP


@cache
def norm(eps: float, int8: bool) -> int:
    """norm(x, weight, cols, rows, token): activation row `token` = x / sqrt(mean of squares + eps) * weight."""
    epsilon = f32(eps)

    def norm(x: int, weight: int, cols: int, rows: int, token: int) -> None:
        inverse = _inverse_rms(x, cols, LANES, epsilon)
        for group in range(cols // GROUP):
            values = _normed(x + _GROUP_BYTES * group, weight + _GROUP_BYTES * group, inverse, GROUP)
            store_group(values, rows, token, cols // GROUP, group, int8)

    return kept_address(norm)


@cache
def norm_twice(eps: float) -> int:
    """norm_twice(x, weight, cols, rows, token, rest): as `norm`, int8, and what the rounding lost into row `rest`."""
    epsilon = f32(eps)

    def norm_twice(x: int, weight: int, cols: int, rows: int, token: int, rest: int) -> None:
        inverse, groups = _inverse_rms(x, cols, LANES, epsilon), cols // GROUP
        for group in range(groups):
            values = _normed(x + _GROUP_BYTES * group, weight + _GROUP_BYTES * group, inverse, GROUP)
            store_group(values, rows, token, groups, group, True)
            quants, scale = quant_group(rows, token, groups, group), group_facts(rows, token, groups, group)[0]
            for k in range(GROUP):
                values[k] -= f32(peek_i8(quants + k)) * peek_f32(scale)
            store_group(values, rows, rest, groups, group, True)

    return kept_address(norm_twice)


@cache
def quantise(int8: bool) -> int:
    """quantise(x, cols, rows, token): one float32 row [cols] into activation row `token`."""

    def quantise(x: int, cols: int, rows: int, token: int) -> None:
        for group in range(cols // GROUP):
            store_group(_peek_values(x + _GROUP_BYTES * group, GROUP), rows, token, cols // GROUP, group, int8)

    return kept_address(quantise)


@cache
def gate(int8: bool) -> int:
    """gate(source, stride, tokens, rows, group, groups): gate / (1 + exp(-gate)) * up for 32 columns of `tokens` rows.

    `source` is float32 [tokens][32 gates, 32 ups], `stride` bytes from one token to the next.
    """

    def gate(source: int, stride: int, tokens: int, rows: int, group: int, groups: int) -> None:
        for token in range(tokens):
            values = _peek_values(source + token * stride, GROUP)
            ups = _peek_values(source + token * stride + _GROUP_BYTES, GROUP)
            for k in range(GROUP):
                values[k] = values[k] / (ONE + exp(-values[k])) * ups[k]
            store_group(values, rows, token, groups, group, int8)

    return kept_address(gate)


@cache
def rotate(shape: HeadShape, eps: float, bias: bool, qk_norm: bool) -> int:
    """rotate(row, k_row, v_row, angles, q_out, q_stride, kv, slot, bias, q_norm, k_norm): one token of one layer.

    Biases are added to the float32 rows of q, k and v [heads][head_dim] where they lie; heads of q and k are normalised
    (if `qk_norm`) and rotated; q, scaled by 1 / sqrt(head_dim), goes to `q_out` [query head of the KV head][head_dim],
    `q_stride` bytes from one KV head to the next, k and v to slot number `slot` of the block at `kv`.
    """
    dim, kv_heads, group, size = shape.head_dim, shape.num_kv_heads, shape.group, shape.element_bytes
    head_bytes, value_offset, scale_offset = (
        offset(BLOCK) for offset in (shape.head_bytes, shape.value_offset, shape.scale_offset)
    )
    q_scale, epsilon, lanes = f32(dim**-0.5), f32(eps), lanes_of(dim)
    in_pairs = shape.kv_dtype == "bf16"

    def rotate(
        row: int, k_row: int, v_row: int, angles: int, q_out: int, q_stride: int, kv: int, slot: int,
        biases: int, q_norm: int, k_norm: int,
    ) -> None:  # fmt: skip
        if bias:
            q_size, kv_size = kv_heads * group * dim, kv_heads * dim
            _add(row, biases, q_size)
            _add(k_row, biases + 4 * q_size, kv_size)
            _add(v_row, biases + 4 * (q_size + kv_size), kv_size)
        for head in range(kv_heads):
            for query in range(group):
                q = row + 4 * dim * (head * group + query)
                values = _rotated(q, dim, angles, q_norm if qk_norm else 0, lanes, epsilon)
                for d in range(dim):
                    poke_f32(q_out + head * q_stride + 4 * (query * dim + d), values[d] * q_scale)
            block = kv + head * head_bytes
            k_scale, v_scale = block + scale_offset + 4 * slot, block + scale_offset + 4 * (BLOCK + slot)
            key = _rotated(k_row + 4 * dim * head, dim, angles, k_norm if qk_norm else 0, lanes, epsilon)
            value = _peek_values(v_row + 4 * dim * head, dim)
            if in_pairs:
                for d in range(dim):
                    poke_u16(block + 4 * (d // 2 * BLOCK + slot) + 2 * (d % 2), float_to_bf16(key[d]))
                    poke_u16(block + value_offset + 4 * (slot // 2 * dim + d) + 2 * (slot % 2), float_to_bf16(value[d]))
            else:
                _store_head(key, block, slot, BLOCK, size, k_scale)
                _store_head(value, block + value_offset, slot * dim, 1, size, v_scale)

    return kept_address(rotate)


@kept
def _peek_values(address: int, count: int) -> Values:
    values = np.empty(count, f32)
    for i in range(count):
        values[i] = peek_f32(address + 4 * i)
    return values


@kept
def _inverse_rms(x: int, cols: int, lanes: int, eps: np.float32) -> np.float32:
    """1 / sqrt(mean of squares + eps): squares are summed in `lanes` columns first, then those by halving."""
    squares = np.zeros(lanes, f32)
    for column in range(cols):
        value = peek_f32(x + 4 * column)
        squares[column % lanes] = fma(value, value, squares[column % lanes])
    return ONE / f32(np.sqrt(sum_lanes(squares) / f32(cols) + eps))


@kept
def _normed(x: int, weight: int, inverse: np.float32, count: int) -> Values:
    values = _peek_values(x, count)
    for i in range(count):
        values[i] = values[i] * inverse * peek_f32(weight + 4 * i)
    return values


@kept
def _add(target: int, addend: int, count: int) -> None:
    for i in range(count):
        poke_f32(target + 4 * i, peek_f32(target + 4 * i) + peek_f32(addend + 4 * i))


@kept
def _rotated(head: int, dim: int, angles: int, norm: int, lanes: int, eps: np.float32) -> Values:
    """One head, normalised unless `norm` is 0, elements i and i + dim / 2 turned by angle i (cosines, then sines)."""
    values = _normed(head, norm, _inverse_rms(head, dim, lanes, eps), dim) if norm else _peek_values(head, dim)
    half = dim // 2
    for i in range(half):
        cos, sin = peek_f32(angles + 4 * i), peek_f32(angles + 4 * (half + i))
        first, second = values[i], values[half + i]
        values[i] = first * cos - second * sin
        values[half + i] = second * cos + first * sin
    return values


@kept
def _store_head(values: Values, target: int, first: int, step: int, size: int, scale_at: int) -> None:
    """Store numbers of `size` bytes as elements `first`, `first + step`, ... at `target`; int8 ones have a scale."""
    if size > 1:
        for i in range(len(values)):
            poke_float(target, first + step * i, size, values[i])
        return
    peak = peak_of(values)
    poke_f32(scale_at, peak * STEP)
    for i in range(len(values)):
        poke_i8(target + first + step * i, int(np.rint(values[i] * inverse_of(peak))))
