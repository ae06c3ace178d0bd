"""Activation rows in plain loops: where their parts lie (see `activations.py`) and how a group is written."""

from __future__ import annotations

import numpy as np

from kvledger.model.kernels.activations import TOKENS
from kvledger.model.kernels.intrinsics import poke_f32, poke_i8, poke_i32
from kvledger.model.kernels.jit import kept
from kvledger.model.kernels.panels import GROUP
from kvledger.model.kernels.plain_numbers import ZERO, Values, f32
from kvledger.model.kernels.rows import LEAST_PEAK

_LEAST_PEAK, _MOST, STEP = f32(LEAST_PEAK), f32(127.0), f32(1 / 127)
_TILE_GROUP = TOKENS * GROUP + 3 * 4 * TOKENS  # bytes of a group in an int8 tile


@kept
def float_group(rows: int, token: int, groups: int, group: int) -> int:
    """The address of one group of 32 float32 values of a row."""
    return rows + 4 * GROUP * (token * groups + group)


@kept
def quant_group(rows: int, token: int, groups: int, group: int) -> int:
    """The address of one group of 32 int8 quants of a row."""
    tile = rows + token // TOKENS * groups * _TILE_GROUP
    return tile + group * TOKENS * GROUP + token % TOKENS * GROUP


@kept
def group_facts(rows: int, token: int, groups: int, group: int) -> tuple[int, int, int]:
    """The addresses of a group's float32 scale, int32 negated sum and float32 scaled sum, in an int8 row."""
    tile = rows + token // TOKENS * groups * _TILE_GROUP
    scale = tile + groups * TOKENS * GROUP + 4 * (group * TOKENS + token % TOKENS)
    return scale, scale + groups * 4 * TOKENS, scale + groups * 8 * TOKENS


@kept
def inverse_of(peak: np.float32) -> np.float32:
    """What takes numbers up to `peak` to -127..127; 0 for a peak so small that it cannot be divided by."""
    return ZERO if peak < _LEAST_PEAK else _MOST / peak


@kept
def peak_of(values: Values) -> np.float32:
    """The largest absolute value."""
    peak = ZERO
    for value in values:
        peak = max(peak, abs(value))
    return peak


@kept
def store_group(values: Values, rows: int, token: int, groups: int, group: int, int8: bool) -> None:
    """Write 32 values as group number `group` of a row."""
    if not int8:
        address = float_group(rows, token, groups, group)
        for k in range(GROUP):
            poke_f32(address + 4 * k, values[k])
        return
    address = quant_group(rows, token, groups, group)
    peak = peak_of(values)
    inverse, scale, total = inverse_of(peak), peak * STEP, 0
    for k in range(GROUP):
        quant = int(np.rint(values[k] * inverse))
        poke_i8(address + k, quant)
        total += quant
    scale_at, negated_sum_at, scaled_sum_at = group_facts(rows, token, groups, group)
    poke_f32(scale_at, scale)
    poke_i32(negated_sum_at, -total)
    poke_f32(scaled_sum_at, scale * f32(total))
