"""`rows.py` in plain loops: norm, quantisation, gating, rotary positions."""

from __future__ import annotations

from functools import cache

import numpy as np

from kvledger.model.kernels.attention import BLOCK
from kvledger.model.kernels.intrinsics import fma, peek_f32, peek_i8, poke_f32, poke_i8
from kvledger.model.kernels.jit import kept, kept_address
from kvledger.model.kernels.panels import GROUP
from kvledger.model.kernels.plain_activations import group_facts, inverse_of, peak_of, quant_group, store_group
from kvledger.model.kernels.plain_numbers import ONE, ZERO, Lanes, exp, f32, poke_float, sum_lanes
from kvledger.model.kernels.rows import LANES, HeadShape, widest_vector

_STEP = f32(1 / 127)
_MINUS_ZERO = f32(-0.0)


@cache
def norm(eps: float, int8: bool) -> int:
    """norm(x, weight, cols, rows, token): activation row `token` = x / sqrt(mean of squares + eps) * weight."""

    def norm(x: int, weight: int, cols: int, rows: int, token: int) -> None:
        inverse = _inverse_rms(x, cols, LANES, eps)
        for group in range(cols // GROUP):
            values = _normed_group(x, weight, inverse, group)
            store_group(values, rows, token, cols // GROUP, group, int8)

    return kept_address(norm)


@cache
def norm_twice(eps: float) -> int:
    """norm_twice(x, weight, cols, rows, token, rest): as `norm`, int8, and what the rounding lost into row `rest`."""

    def norm_twice(x: int, weight: int, cols: int, rows: int, token: int, rest: int) -> None:
        inverse, groups = _inverse_rms(x, cols, LANES, eps), cols // GROUP
        for group in range(groups):
            values = _normed_group(x, weight, inverse, group)
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
            store_group(_peek_lanes(x + 4 * GROUP * group, GROUP), rows, token, cols // GROUP, group, int8)

    return kept_address(quantise)


@cache
def gate(int8: bool) -> int:
    """gate(source, stride, tokens, rows, group, groups): gate / (1 + exp(-gate)) * up for 32 columns of `tokens` rows.

    `source` is float32 [tokens][32 gates, 32 ups], `stride` bytes from one token to the next.
    """

    def gate(source: int, stride: int, tokens: int, rows: int, group: int, groups: int) -> None:
        for token in range(tokens):
            values = _peek_lanes(source + token * stride, GROUP)
            for k in range(GROUP):
                up = peek_f32(source + token * stride + 4 * (GROUP + k))
                values[k] = values[k] / (ONE + exp(_MINUS_ZERO - values[k])) * up
            store_group(values, rows, token, groups, group, int8)

    return kept_address(gate)


@cache
def rotate(shape: HeadShape, eps: float, bias: bool, qk_norm: bool) -> int:
    """rotate(row, k_row, v_row, angles, q_out, q_stride, kv, slot, bias, q_norm, k_norm): one token of one layer.

    Biases are added to the float32 rows of q, k and v [heads][head_dim] where they lie; heads of q and k are normalised
    (if `qk_norm`) and rotated; q goes to `q_out` [kv head][query head of it][head_dim], k and v to slot `slot` of the
    block at `kv`.
    """
    dim, kv_heads, group, kv_dtype = shape.head_dim, shape.num_kv_heads, shape.group, shape.kv_dtype
    element, is_int8 = shape.element_bytes, kv_dtype == "int8"
    head_bytes, value_offset, scale_offset = (
        f(BLOCK) for f in (shape.head_bytes, shape.value_offset, shape.scale_offset)
    )
    q_scale, q_lanes = f32(dim**-0.5), widest_vector(dim)

    def rotate(
        row: int, k_row: int, v_row: int, angles: int, q_out: int, q_stride: int, kv: int, slot: int,
        biases: int, q_norm: int, k_norm: int,
    ) -> None:  # fmt: skip
        q_size, kv_size = kv_heads * group * dim, kv_heads * dim
        if bias:
            _add(row, biases, q_size)
            _add(k_row, biases + 4 * q_size, kv_size)
            _add(v_row, biases + 4 * (q_size + kv_size), kv_size)
        for head in range(kv_heads):
            for query in range(group):
                values = _peek_lanes(row + 4 * dim * (head * group + query), dim)
                if qk_norm:
                    _norm_head(values, row + 4 * dim * (head * group + query), q_norm, q_lanes, eps)
                _rotate_head(values, angles)
                for d in range(dim):
                    poke_f32(q_out + head * q_stride + 4 * (query * dim + d), values[d] * q_scale)
            block = kv + head * head_bytes
            values = _peek_lanes(k_row + 4 * dim * head, dim)
            if qk_norm:
                _norm_head(values, k_row + 4 * dim * head, k_norm, q_lanes, eps)
            _rotate_head(values, angles)
            _store_head(values, block, slot, BLOCK, element)
            values = _peek_lanes(v_row + 4 * dim * head, dim)
            _store_head(values, block + value_offset, slot * dim, 1, element)

    return kept_address(rotate)


@kept
def _inverse_rms(x: int, cols: int, lanes: int, eps: float) -> np.float32:
    """1 / sqrt(mean of squares + eps); squares are summed in `lanes` columns, then those by halving."""
    squares = np.zeros(lanes, f32)
    for column in range(cols):
        value = peek_f32(x + 4 * column)
        squares[column % lanes] = fma(value, value, squares[column % lanes])
    return ONE / np.sqrt(sum_lanes(squares) / f32(cols) + f32(eps))
