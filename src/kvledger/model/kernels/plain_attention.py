"""`attention.py` in plain loops: a tile of query rows over one chunk of keys, and how chunks become one result."""

from __future__ import annotations

from functools import cache

import numpy as np

from kvledger.model.kernels.attention import BLOCK, CHUNK, HIDDEN, MAX_ROWS, Tile
from kvledger.model.kernels.intrinsics import fma, peek_f32, peek_i32, poke_f32
from kvledger.model.kernels.jit import kept, kept_address
from kvledger.model.kernels.plain_numbers import ONE, ZERO, exp, f32, maximum, peak_lanes, peek_number, sum_lanes

_HIDDEN = f32(HIDDEN)


@cache
def attend(tile: Tile) -> int:
    """attend(q, kv, block_stride, table, visible, scores, partial): softmax(q . k) . v over one chunk, not yet divided.

    Row r of `q` [rows][head_dim] belongs to token r // group, which sees the first `visible + r // group` keys of the
    chunk. `table` names the chunk's blocks, `block_stride` bytes apart, the head's part of block 0 being at `kv`. What
    goes to `partial`: sums of values weighted by exp(score - row maximum) [rows][head_dim], the row maxima, the sums of
    those weights.
    """
    shape, num_rows, group, dim = tile.shape, tile.rows, tile.shape.group, tile.shape.head_dim
    size, value_offset, scale_offset = shape.element_bytes, shape.value_offset(BLOCK), shape.scale_offset(BLOCK)

    def attend(q: int, kv: int, block_stride: int, table: int, visible: int, scores: int, partial: int) -> None:
        last = min(visible + num_rows // group - 1, CHUNK)
        num_keys = (last + BLOCK - 1) // BLOCK * BLOCK
        for row in range(num_rows):
            limit = visible + row // group
            weights = scores + 4 * row * (CHUNK + BLOCK)

            peaks = np.full(BLOCK, _HIDDEN, f32)
            for key in range(num_keys):
                block, slot = kv + block_stride * peek_i32(table + 4 * (key // BLOCK)), key % BLOCK
                score = ZERO
                for d in range(dim):
                    score = fma(peek_f32(q + 4 * (row * dim + d)), peek_number(block, d * BLOCK + slot, size), score)
                if size == 1:
                    score *= peek_f32(block + scale_offset + 4 * slot)
                poke_f32(weights + 4 * key, score)
                peaks[slot] = maximum(score if key < limit else _HIDDEN, peaks[slot])
            peak = peak_lanes(peaks)

            sums = np.zeros(BLOCK, f32)
            for key in range(num_keys):
                block, slot = kv + block_stride * peek_i32(table + 4 * (key // BLOCK)), key % BLOCK
                weight = exp(peek_f32(weights + 4 * key) - peak) if key < limit else ZERO
                sums[slot] += weight
                if size == 1:
                    weight *= peek_f32(block + scale_offset + 4 * (BLOCK + slot))
                poke_f32(weights + 4 * key, weight)
            poke_f32(_peak_at(partial, num_rows, dim, row), peak)
            poke_f32(_sum_at(partial, num_rows, dim, row), sum_lanes(sums))

            for d in range(dim):
                total = ZERO
                for key in range(num_keys):
                    block, slot = kv + block_stride * peek_i32(table + 4 * (key // BLOCK)), key % BLOCK
                    value = peek_number(block + value_offset, slot * dim + d, size)
                    total = fma(peek_f32(weights + 4 * key), value, total)
                poke_f32(partial + 4 * (row * dim + d), total)

    return kept_address(attend)


@cache
def merge(tile: Tile) -> int:
    """merge(into, other): join the partial of later keys into that of all earlier ones."""
    num_rows, dim = tile.rows, tile.shape.head_dim

    def merge(into: int, other: int) -> None:
        for row in range(num_rows):
            peak_at, sum_at = _peak_at(0, num_rows, dim, row), _sum_at(0, num_rows, dim, row)
            earlier_peak, later_peak = peek_f32(into + peak_at), peek_f32(other + peak_at)
            peak = maximum(earlier_peak, later_peak)
            earlier, later = exp(earlier_peak - peak), exp(later_peak - peak)
            poke_f32(into + peak_at, peak)
            poke_f32(into + sum_at, fma(peek_f32(other + sum_at), later, peek_f32(into + sum_at) * earlier))
            for d in range(dim):
                at = 4 * (row * dim + d)
                poke_f32(into + at, fma(peek_f32(other + at), later, peek_f32(into + at) * earlier))

    return kept_address(merge)


@cache
def finish(tile: Tile) -> int:
    """finish(partial, out, out_stride): divided by its sum, row r goes to head r % group of token r // group."""
    num_rows, group, dim = tile.rows, tile.shape.group, tile.shape.head_dim

    def finish(partial: int, out: int, out_stride: int) -> None:
        for row in range(num_rows):
            inverse = ONE / peek_f32(_sum_at(partial, num_rows, dim, row))
            target = out + row // group * out_stride + 4 * dim * (row % group)
            for d in range(dim):
                poke_f32(target + 4 * d, peek_f32(partial + 4 * (row * dim + d)) * inverse)

    return kept_address(finish)


@kept
def _peak_at(partial: int, num_rows: int, dim: int, row: int) -> int:
    return partial + 4 * (num_rows * dim + row)


@kept
def _sum_at(partial: int, num_rows: int, dim: int, row: int) -> int:
    return partial + 4 * (num_rows * dim + MAX_ROWS + row)
