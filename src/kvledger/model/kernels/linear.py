"""Matrix times token rows, for one panel of 16 output columns: IR emitters.

Signature of every kernel: `linear(panel, rows, groups, tokens, out, out_stride)`, all int64, the pointers as addresses.
`rows` begins a tile of activation rows (`activations.py`); `out` is float32 rows `out_stride` bytes apart, of which 16
columns are written, or added to in the `add` variant.

With int8 rows the sum over a group of 32 columns is exact in int32, and groups are added in order in float32:
`acc = fma(float(dot) * scale, row_scale, acc)`, then for formats with a minimum `acc = fma(minimum, scaled_sum, acc)`.
With float32 rows it is `acc = fma(weight, x, acc)` column by column. Neither depends on how many tokens share the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llvmlite import ir

from kvledger.model.kernels import amx
from kvledger.model.kernels.activations import Row
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.emit import F16, F32, I8, I16, I32, Emit, Value, vec
from kvledger.model.kernels.panels import GROUP, ROWS, PanelFormat

LANES_F32 = vec(F32, ROWS)
LANES_I32 = vec(I32, ROWS)
BYTES = vec(I8, 64)
PREFETCH = 8192
"""Bytes ahead: what memory delivers in its latency several times over, and little enough for the second-level cache."""
FLOATS = {"f32": F32, "f16": F16, "bf16": I16}


@dataclass(frozen=True)
class _Panel:
    """Where the parts of the panel being multiplied lie."""

    format: PanelFormat
    quants: Value
    scales: Value
    minima: Value
    bytes: Value | None = None
    """The quants as signed bytes, where a kernel wants them so."""


def emit_linear(e: Emit, format_: PanelFormat, int8_rows: bool, add: bool, args: list[Value]) -> None:
    """Build the body of one kernel: tiles of many tokens while they last, then smaller ones."""
    panel, rows, groups, tokens, out, out_stride = args
    scales = e.at(panel, e.times(groups, format_.quant_bytes(1)))
    parts = _Panel(format_, panel, scales, e.at(scales, e.times(groups, format_.scales_bytes(1))))
    sizes = {1: _emit_int8_tile, 2: _emit_int8_tile, 4: _emit_int8_tile, 8: _emit_int8_tile}
    if not int8_rows:
        sizes = dict.fromkeys(sizes, _emit_f32_tile)
    if not e.has_avx512:
        del sizes[8]
    if int8_rows and e.isa is Isa.AMX and format_.scales_per_group == 1:
        enough = e.b.sdiv(tokens, e.i64(min(amx.SIZES)))
        parts = replace(parts, bytes=amx.emit_unpacked(e, format_, panel, groups, enough))
        sizes |= dict.fromkeys(amx.SIZES, _emit_amx_tile)
    done = e.i64(0)
    for size in sorted(sizes, reverse=True):
        count = e.b.sdiv(e.b.sub(tokens, done), e.i64(size))
        with e.loop(count) as tile:
            first = e.b.add(done, e.times(tile, size))
            sums = sizes[size](e, parts, Row.of(e, rows, first, groups, int8_rows), size)
            _store_sums(e, sums, e.at(out, e.b.mul(first, out_stride)), out_stride, add)
        done = e.b.add(done, e.times(count, size))


def _store_sums(e: Emit, sums: list[Value], out: Value, out_stride: Value, add: bool) -> None:
    for t, total in enumerate(sums):
        address = e.at(out, e.times(out_stride, t))
        e.store(e.b.fadd(e.load(address, LANES_F32), total) if add else total, address)


def _emit_int8_tile(e: Emit, panel: _Panel, row: Row, size: int) -> list[Value]:
    format_ = panel.format
    totals = [e.variable(e.const(LANES_F32, 0.0)) for _ in range(size)]
    # AVX-512 multiplies unsigned by signed bytes: signed weights are raised by 128, which the sums take off again.
    raised = 128 if format_.bits == 8 and e.has_avx512 else format_.zero
    dot4 = e.dot4_signed if format_.bits == 8 and not e.has_avx512 else e.dot4
    with e.loop(row.groups) as g:
        quants = e.at(panel.quants, e.times(g, format_.quant_bytes(1)))
        if size <= 2:
            # So few tokens wait for memory. Prefetches walk through whole panels, scales included, and into the next.
            per_group = format_.panel_bytes(GROUP) // GROUP
            for line in range(0, per_group, 64):
                e.prefetch(e.at(panel.quants, e.times(g, per_group), PREFETCH + line), locality=2)
        weights = load_quants(e, format_, quants)
        if format_.bits == 8 and e.has_avx512:
            weights = [e.b.xor(w, e.const_bytes(0x80)) for w in weights]
        for part in range(format_.scales_per_group):
            scale = _load_scale(e, panel, g, part)
            quads = range(part * 8 // format_.scales_per_group, (part + 1) * 8 // format_.scales_per_group)
            for t in range(size):
                tokens = [e.broadcast(e.at(row.values(g, t), 4 * j), I32, ROWS) for j in quads]
                dot = _raised_part(e, raised, row.negated_sum(g, t), tokens)
                for j, token in zip(quads, tokens, strict=True):
                    dot = dot4(dot, weights[j], token)
                scaled = e.b.fmul(e.b.sitofp(dot, LANES_F32), scale)
                e.set(totals[t], e.fma(scaled, e.broadcast(row.scale(g, t), F32, ROWS), e.get(totals[t])))
        if format_.has_minimum:
            minimum = _load_minimum(e, panel, g)
            for t in range(size):
                e.set(totals[t], e.fma(minimum, e.broadcast(row.scaled_sum(g, t), F32, ROWS), e.get(totals[t])))
    return [e.get(total) for total in totals]


def load_quants(e: Emit, format_: PanelFormat, quants: Value) -> list[Value]:
    """The 8 vectors of a group: byte `4 * row + i` of vector j is column `4j + i`."""
    stored = [e.load(e.at(quants, 64 * j), BYTES) for j in range(format_.quant_bytes(1) // 64)]
    if format_.bits == 8:
        return stored
    low = e.const_bytes(0x0F)
    high = [e.b.lshr(e.b.bitcast(q, vec(I16, 32)), ir.Constant(vec(I16, 32), [4] * 32)) for q in stored]
    return [e.b.and_(q, low) for q in stored] + [e.b.and_(e.b.bitcast(h, BYTES), low) for h in high]


def _raised_part(e: Emit, raised: int, negated_sum: Value, tokens: list[Value]) -> Value:
    """What a dot product starts from: minus the amount the weights were raised by, times the sum of the activations."""
    if not raised:
        return e.const(LANES_I32, 0)
    shift = raised.bit_length() - 1
    assert raised == 1 << shift
    if len(tokens) == GROUP // 4:
        return e.b.shl(e.broadcast(negated_sum, I32, ROWS), e.const(LANES_I32, shift))
    part = e.const(LANES_I32, 0)
    for token in tokens:
        part = e.dot4(part, e.const_bytes(1), token)
    return e.b.sub(e.const(LANES_I32, 0), e.b.shl(part, e.const(LANES_I32, shift)))


def _emit_amx_tile(e: Emit, panel: _Panel, row: Row, size: int) -> list[Value]:
    """As `_emit_int8_tile` for many tokens, with the integer dot products taken by the tile unit."""
    totals = [e.variable(e.const(LANES_F32, 0.0)) for _ in range(size)]
    dots = amx.emit_dots_space(e)

    def start(g: Value) -> None:
        amx.emit_dots(e, size, e.at(panel.bytes, e.times(g, amx.GROUP_BYTES)), row.values(g), _dots_of(e, dots, g))

    # The tile unit runs ahead of the scaling below, by enough groups to hide the way through memory.
    last = e.b.sub(row.groups, e.i64(1))
    for ahead in range(amx.AHEAD):
        start(_least(e, e.i64(ahead), last))
    with e.loop(row.groups) as g:
        start(_least(e, e.at(g, amx.AHEAD), last))
        scale = _load_scale(e, panel, g, 0)
        minimum = _load_minimum(e, panel, g) if panel.format.has_minimum else None
        space = _dots_of(e, dots, g)
        for t, total in enumerate(totals):
            scaled = e.b.fmul(e.b.sitofp(e.load(e.at(space, 64 * t), LANES_I32), LANES_F32), scale)
            value = e.fma(scaled, e.broadcast(row.scale(g, t), F32, ROWS), e.get(total))
            if minimum is not None:
                value = e.fma(minimum, e.broadcast(row.scaled_sum(g, t), F32, ROWS), value)
            e.set(total, value)
    return [e.get(total) for total in totals]


def _dots_of(e: Emit, dots: Value, g: Value) -> Value:
    return e.at(dots, e.times(e.b.and_(g, e.i64(amx.SPACES - 1)), amx.DOTS_BYTES))


def _least(e: Emit, a: Value, b: Value) -> Value:
    return e.b.select(e.b.icmp_signed("<", a, b), a, b)


def _load_scale(e: Emit, panel: _Panel, g: Value, part: int) -> Value:
    format_ = panel.format
    stored = F16 if format_.scale_bytes == 2 else F32
    scales = e.at(panel.scales, e.times(g, format_.scales_bytes(1)))
    return e.load_f32(e.at(scales, part * ROWS * format_.scale_bytes), ROWS, stored)


def _load_minimum(e: Emit, panel: _Panel, g: Value) -> Value:
    stored = F16 if panel.format.scale_bytes == 2 else F32
    return e.load_f32(e.at(panel.minima, e.times(g, ROWS * panel.format.scale_bytes)), ROWS, stored)


def _emit_f32_tile(e: Emit, panel: _Panel, row: Row, size: int) -> list[Value]:
    format_ = panel.format
    totals = [e.variable(e.const(LANES_F32, 0.0)) for _ in range(size)]
    with e.loop(row.groups) as g:
        in_group = [row.values(g, t) for t in range(size)]
        if format_.is_quantised:
            _emit_dequantised_group(e, panel, g, in_group, totals)
        else:
            columns = e.at(panel.quants, e.times(g, format_.quant_bytes(1)))
            with e.loop(GROUP) as k:
                weight = e.load_f32(e.at(columns, e.times(k, ROWS * format_.bits // 8)), ROWS, FLOATS[format_.name])
                for x, total in zip(in_group, totals, strict=True):
                    value = e.broadcast(e.at(x, e.times(k, 4)), F32, ROWS)
                    e.set(total, e.fma(weight, value, e.get(total)))
    return [e.get(total) for total in totals]


def _emit_dequantised_group(e: Emit, panel: _Panel, g: Value, in_group: list[Value], totals: list[Value]) -> None:
    format_ = panel.format
    minimum = _load_minimum(e, panel, g) if format_.has_minimum else None
    for j, quad in enumerate(load_quants(e, format_, e.at(panel.quants, e.times(g, format_.quant_bytes(1))))):
        scale = _load_scale(e, panel, g, j * format_.scales_per_group // 8)
        lanes = e.b.bitcast(quad, LANES_I32)
        for i in range(4):
            # The byte to the top, then down again with its sign (8-bit) or without (4-bit).
            top = e.b.shl(lanes, e.const(LANES_I32, 24 - 8 * i))
            down = e.b.ashr if format_.bits == 8 else e.b.lshr
            quant = e.b.sub(down(top, e.const(LANES_I32, 24)), e.const(LANES_I32, format_.zero))
            weight = e.b.sitofp(quant, LANES_F32)
            weight = e.fma(weight, scale, minimum) if minimum is not None else e.b.fmul(weight, scale)
            for x, total in zip(in_group, totals, strict=True):
                value = e.broadcast(e.at(x, 4 * (4 * j + i)), F32, ROWS)
                e.set(total, e.fma(weight, value, e.get(total)))


def emit_embed(e: Emit, format_: PanelFormat, args: list[Value]) -> None:
    """embed(matrix, panel_bytes, row, groups, out): one row of a packed matrix as float32."""
    matrix, panel_bytes, row, groups, out = args
    rows = e.i64(ROWS)
    panel = e.at(matrix, e.b.mul(e.b.sdiv(row, rows), panel_bytes))
    lane = e.b.srem(row, rows)
    width = format_.bits // 8
    if not format_.is_quantised:
        stored = FLOATS[format_.name]
        with e.loop(e.times(groups, GROUP)) as k:
            address = e.at(panel, e.times(k, ROWS * width), e.times(lane, width))
            e.store(e.load_f32(address, 1, stored), e.at(out, e.times(k, 4)))
        return
    scales = e.at(panel, e.times(groups, format_.quant_bytes(1)))
    minima = e.at(scales, e.times(groups, format_.scales_bytes(1)))
    stored, scale_row = (F16 if format_.scale_bytes == 2 else F32), ROWS * format_.scale_bytes
    one = vec(I32, 1)
    with e.loop(groups) as g:
        quants = e.at(panel, e.times(g, format_.quant_bytes(1)), e.times(lane, 4))
        for k in range(GROUP):
            half, byte = (k // 16, k % 16) if format_.bits == 4 else (0, k)
            stored_byte = e.load(e.at(quants, byte // 4 * 64 + byte % 4), vec(I8, 1))
            quant = e.b.sext(stored_byte, one)
            if format_.bits == 4:
                quant = e.b.and_(e.b.lshr(quant, e.const(one, 4 * half)), e.const(one, 15))
            part = k * format_.scales_per_group // GROUP
            scale_at = e.at(
                scales, e.times(g, format_.scales_bytes(1)), part * scale_row, e.times(lane, format_.scale_bytes)
            )
            scale = e.load_f32(scale_at, 1, stored)
            value = e.b.sitofp(e.b.sub(quant, e.const(one, format_.zero)), vec(F32, 1))
            if format_.has_minimum:
                minimum = e.load_f32(e.at(minima, e.times(g, scale_row), e.times(lane, format_.scale_bytes)), 1, stored)
                value = e.fma(value, scale, minimum)
            else:
                value = e.b.fmul(value, scale)
            e.store(value, e.at(out, e.times(g, 4 * GROUP), 4 * k))
