"""`attention_pairs.py` in plain loops."""

from __future__ import annotations

from functools import cache

import numpy as np

from kvledger.model.kernels.attention import BLOCK, CHUNK, HIDDEN, MAX_ROWS, Tile
from kvledger.model.kernels.attention_pairs import SPAN
from kvledger.model.kernels.intrinsics import fma, peek_f32, peek_i32, peek_u16, poke_f32
from kvledger.model.kernels.jit import kept, kept_address
from kvledger.model.kernels.plain_numbers import (
    ZERO,
    Values,
    bf16_to_float,
    exp_short,
    f32,
    float_to_bf16,
    maximum,
    peak_lanes,
    sum_lanes,
)

_HIDDEN = f32(HIDDEN)


@cache
def attend(tile: Tile) -> int:
    """attend(q, kv, block_stride, table, visible, scores, partial): as that of `plain_attention`, in bf16 pairs."""
    num_rows, group, dim = tile.rows, tile.shape.group, tile.shape.head_dim
    value_offset = tile.shape.value_offset(BLOCK)

    def attend(q: int, kv: int, block_stride: int, table: int, visible: int, scores: int, partial: int) -> None:
        last = min(visible + num_rows // group - 1, CHUNK)
        num_keys = (last + BLOCK - 1) // BLOCK * BLOCK
        query, weights = np.empty(dim, f32), np.empty(CHUNK, f32)
        for row in range(num_rows):
            limit = visible + row // group
            for d in range(dim):
                query[d] = _rounded(peek_f32(q + 4 * (row * dim + d)))
            peaks = np.full(BLOCK, _HIDDEN, f32)
            for key in range(num_keys):
                keys = kv + block_stride * peek_i32(table + 4 * (key // BLOCK)) + 4 * (key % BLOCK)
                score = ZERO
                for first in range(0, dim, SPAN):
                    score += _pairs(query[first : first + SPAN], keys + first // 2 * 4 * BLOCK, 4 * BLOCK)
                weights[key] = score
                peaks[key % BLOCK] = maximum(score if key < limit else _HIDDEN, peaks[key % BLOCK])
            peak = peak_lanes(peaks)

            sums = np.zeros(BLOCK, f32)
            for key in range(num_keys):
                weight = exp_short(weights[key] - peak) if key < limit else ZERO
                sums[key % BLOCK] += weight
                weights[key] = _rounded(weight)
            poke_f32(partial + 4 * (num_rows * dim + row), peak)
            poke_f32(partial + 4 * (num_rows * dim + MAX_ROWS + row), sum_lanes(sums))

            for d in range(dim):
                total = ZERO
                for first in range(0, num_keys, BLOCK):
                    block = kv + block_stride * peek_i32(table + 4 * (first // BLOCK))
                    total += _pairs(weights[first : first + BLOCK], block + value_offset + 4 * d, 4 * dim)
                poke_f32(partial + 4 * (row * dim + d), total)

    return kept_address(attend)


@kept
def _rounded(value: np.float32) -> np.float32:
    return bf16_to_float(float_to_bf16(value))


@kept
def _pairs(factors: Values, pairs: int, step: int) -> np.float32:
    """The sum of products of `factors` with bf16 pairs, `step` bytes apart: even products, odd products, then both."""
    even, odd = ZERO, ZERO
    for i in range(len(factors) // 2):
        even = fma(factors[2 * i], bf16_to_float(peek_u16(pairs + step * i)), even)
        odd = fma(factors[2 * i + 1], bf16_to_float(peek_u16(pairs + step * i + 2)), odd)
    return even + odd
