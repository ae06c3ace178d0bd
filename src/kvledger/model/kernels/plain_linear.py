"""`linear.py` in plain loops: a panel of 16 matrix rows times rows of activations, and one matrix row by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from kvledger.model.kernels.intrinsics import float_of, fma, peek_f32, peek_i8, peek_u8, peek_u16, poke_f32
from kvledger.model.kernels.jit import kept, kept_address
from kvledger.model.kernels.panels import GROUP, ROWS, PanelFormat
from kvledger.model.kernels.plain_activations import float_group, group_facts, quant_group
from kvledger.model.kernels.plain_numbers import ONE, ZERO, f32, peek_number


class _Layout(NamedTuple):
    """What a loop must know of a `PanelFormat`. Bytes are those of one group."""

    bits: int
    zero: int
    scale_bytes: int
    scales_per_group: int
    has_minimum: bool
    is_bf16: bool
    quant_bytes: int
    scales_bytes: int

    @classmethod
    def of(cls, f: PanelFormat) -> _Layout:
        return cls(
            f.bits,
            f.zero,
            f.scale_bytes,
            f.scales_per_group,
            f.has_minimum,
            f.name == "bf16",
            f.quant_bytes(1),
            f.scales_bytes(1),
        )


@cache
def linear(format_: PanelFormat, int8: bool, add: bool) -> int:
    """linear(panel, rows, groups, tokens, out, out_stride): out[token][row] = sum of weight[row][k] * x[token][k].

    For the 16 rows of a panel, `tokens` activation rows and k below 32 * `groups`; `add` adds to what `out` holds.
    """
    return kept_address((_linear_int8 if int8 else _linear_f32)(_Layout.of(format_), add))


def _linear_int8(layout: _Layout, add: bool) -> Callable[..., None]:
    """Both factors int8: the sum over a group, or over half of one that has two scales, is exact."""

    def linear_int8(panel: int, rows: int, groups: int, tokens: int, out: int, out_stride: int) -> None:
        width = GROUP // layout.scales_per_group
        for token in range(tokens):
            for row in range(ROWS):
                total = ZERO
                for group in range(groups):
                    x = quant_group(rows, token, groups, group)
                    x_scale_at, _, x_scaled_sum_at = group_facts(rows, token, groups, group)
                    for part in range(layout.scales_per_group):
                        dot = 0
                        for k in range(part * width, (part + 1) * width):
                            dot += _quant(panel, row, group, k, layout) * peek_i8(x + k)
                        scaled = f32(dot) * _scale(panel, groups, row, group, part, layout)
                        total = fma(scaled, peek_f32(x_scale_at), total)
                    if layout.has_minimum:
                        total = fma(_minimum(panel, groups, row, group, layout), peek_f32(x_scaled_sum_at), total)
                _store(out + token * out_stride + 4 * row, total, add)

    return linear_int8


def _linear_f32(layout: _Layout, add: bool) -> Callable[..., None]:
    """Weights made float32 first, then one fused multiply-add per column, in order."""

    def linear_f32(panel: int, rows: int, groups: int, tokens: int, out: int, out_stride: int) -> None:
        width = GROUP // layout.scales_per_group
        for token in range(tokens):
            for row in range(ROWS):
                total = ZERO
                for group in range(groups):
                    x = float_group(rows, token, groups, group)
                    minimum = _minimum(panel, groups, row, group, layout)
                    for part in range(layout.scales_per_group):
                        scale = _scale(panel, groups, row, group, part, layout)
                        for k in range(part * width, (part + 1) * width):
                            weight = _weight(panel, row, group, k, scale, minimum, layout)
                            total = fma(weight, peek_f32(x + 4 * k), total)
                _store(out + token * out_stride + 4 * row, total, add)

    return linear_f32


@cache
def embed(format_: PanelFormat) -> int:
    """embed(matrix, panel_bytes, row, groups, out): row number `row` of a packed matrix as float32 [32 * groups]."""
    layout = _Layout.of(format_)

    def embed(matrix: int, panel_bytes: int, row: int, groups: int, out: int) -> None:
        panel = matrix + row // ROWS * panel_bytes
        for group in range(groups):
            minimum = _minimum(panel, groups, row % ROWS, group, layout)
            for k in range(GROUP):
                scale = _scale(panel, groups, row % ROWS, group, k * layout.scales_per_group // GROUP, layout)
                weight = _weight(panel, row % ROWS, group, k, scale, minimum, layout)
                poke_f32(out + 4 * (group * GROUP + k), weight)

    return kept_address(embed)


@kept
def _store(address: int, total: np.float32, add: bool) -> None:
    poke_f32(address, peek_f32(address) + total if add else total)


@kept
def _weight(
    panel: int, row: int, group: int, k: int, scale: np.float32, minimum: np.float32, layout: _Layout
) -> np.float32:
    """The weight in column `k` of a group with this scale and minimum."""
    if layout.bits > 8:
        index = (group * GROUP + k) * ROWS + row
        if layout.is_bf16:
            return float_of(peek_u16(panel + 2 * index) << 16)
        return peek_number(panel, index, layout.bits // 8)
    quant = f32(_quant(panel, row, group, k, layout))
    return fma(quant, scale, minimum) if layout.has_minimum else quant * scale


@kept
def _quant(panel: int, row: int, group: int, k: int, layout: _Layout) -> int:
    """The quant in column `k` of a group, less the zero point."""
    stored = k if layout.bits == 8 else k % (GROUP // 2)
    address = panel + group * layout.quant_bytes + stored // 4 * 4 * ROWS + 4 * row + stored % 4
    if layout.bits == 8:
        return peek_i8(address)
    byte = peek_u8(address)
    return (byte & 15 if k < GROUP // 2 else byte >> 4) - layout.zero


@kept
def _scale(panel: int, groups: int, row: int, group: int, part: int, layout: _Layout) -> np.float32:
    """The scale of a group or of a part of it; floating-point formats have none."""
    if layout.bits > 8:
        return ONE
    scales = panel + groups * layout.quant_bytes
    return peek_number(scales, (group * layout.scales_per_group + part) * ROWS + row, layout.scale_bytes)


@kept
def _minimum(panel: int, groups: int, row: int, group: int, layout: _Layout) -> np.float32:
    """The minimum of a group, or 0 in formats without one."""
    if not layout.has_minimum:
        return ZERO
    minima = panel + groups * (layout.quant_bytes + layout.scales_bytes)
    return peek_number(minima, group * ROWS + row, layout.scale_bytes)
