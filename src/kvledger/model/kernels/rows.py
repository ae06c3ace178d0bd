"""Row-wise work between the matrices: norm, quantisation, gating, rotary positions. IR emitters.

What a linear kernel will multiply is written as activation rows (`activations.py`), int8 or float32. All arguments are
int64; pointers are addresses, strides are in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from kvledger.model.kernels.activations import Row
from kvledger.model.kernels.emit import F16, F32, I8, I16, I32, Emit, Value, vec
from kvledger.model.kernels.panels import GROUP

LANES = 16
LEAST_PEAK = 1e-36
"""Numbers that are all smaller count as zeros when they are rounded to int8, since 127 / peak could overflow."""


def emit_norm(e: Emit, eps: float, int8: bool, args: list[Value]) -> None:
    """norm(x, weight, cols, rows, token): RMSNorm of one float32 row into activation row `token`.

    Squares are summed per lane of 16 columns, then over lanes by halving.
    """
    x, weight, cols, rows, token = args
    inverse = _inverse_rms(e, x, cols, eps)
    groups = e.b.sdiv(cols, e.i64(GROUP))
    row = Row.of(e, rows, token, groups, int8)
    with e.loop(groups) as g:
        offset = e.times(g, 4 * GROUP)
        values = e.load(e.at(x, offset), vec(F32, GROUP))
        values = e.b.fmul(e.b.fmul(values, e.splat(inverse, GROUP)), e.load(e.at(weight, offset), vec(F32, GROUP)))
        _store_group(e, values, row, g)


def emit_norm_twice(e: Emit, eps: float, args: list[Value]) -> None:
    """norm_twice(x, weight, cols, rows, token, rest): as `norm`, int8, and what the rounding lost into row `rest`.

    The sum of the products with both rows is as good as one with 15-bit activations.
    """
    x, weight, cols, rows, token, rest = args
    inverse = _inverse_rms(e, x, cols, eps)
    groups = e.b.sdiv(cols, e.i64(GROUP))
    first, second = (Row.of(e, rows, number, groups, True) for number in (token, rest))
    with e.loop(groups) as g:
        offset = e.times(g, 4 * GROUP)
        values = e.load(e.at(x, offset), vec(F32, GROUP))
        values = e.b.fmul(e.b.fmul(values, e.splat(inverse, GROUP)), e.load(e.at(weight, offset), vec(F32, GROUP)))
        _store_group(e, values, first, g)
        quants = e.load_f32(first.values(g), GROUP, I8)
        stored = e.b.fmul(quants, e.broadcast(first.scale(g), F32, GROUP))
        _store_group(e, e.b.fsub(values, stored), second, g)


def _inverse_rms(e: Emit, x: Value, cols: Value, eps: float, lanes: int = LANES) -> Value:
    squares = e.variable(e.const(vec(F32, lanes), 0.0))
    with e.loop(e.b.sdiv(cols, e.i64(lanes))) as i:
        value = e.load(e.at(x, e.times(i, 4 * lanes)), vec(F32, lanes))
        e.set(squares, e.fma(value, value, e.get(squares)))
    mean = e.b.fdiv(e.reduce(e.get(squares), e.b.fadd), e.b.sitofp(cols, F32))
    root = e.unary("sqrt", e.b.fadd(mean, e.const(F32, eps)))
    return e.b.fdiv(e.const(F32, 1.0), root)


def emit_quantise(e: Emit, int8: bool, args: list[Value]) -> None:
    """quantise(x, cols, rows, token): one float32 row into activation row `token`."""
    x, cols, rows, token = args
    groups = e.b.sdiv(cols, e.i64(GROUP))
    row = Row.of(e, rows, token, groups, int8)
    with e.loop(groups) as g:
        _store_group(e, e.load(e.at(x, e.times(g, 4 * GROUP)), vec(F32, GROUP)), row, g)


def emit_gate(e: Emit, int8: bool, args: list[Value]) -> None:
    """gate(source, stride, tokens, rows, group, groups): silu(gate) * up into one group of `tokens` activation rows.

    Each source row holds 32 float32 gates and the 32 ups that belong to them.
    """
    source, stride, tokens, rows, group, groups = args
    with e.loop(tokens) as t:
        pair = e.at(source, e.b.mul(t, stride))
        gate, up = (e.load(e.at(pair, offset), vec(F32, GROUP)) for offset in (0, 4 * GROUP))
        one = e.const(gate.type, 1.0)
        silu = e.b.fdiv(gate, e.b.fadd(one, e.exp(e.b.fsub(e.const(gate.type, -0.0), gate))))
        _store_group(e, e.b.fmul(silu, up), Row.of(e, rows, t, groups, int8), group)


def _store_group(e: Emit, values: Value, row: Row, group: Value) -> None:
    """Write 32 float32 values as group number `group` of an activation row."""
    if not row.int8:
        e.store(values, row.values(group))
        return
    peak = e.reduce(e.unary("fabs", values), e.maximum)
    inverse = _inverse_of(e, peak)
    scale = e.b.fmul(peak, e.const(F32, 1 / 127))
    quants = e.b.fptosi(e.unary("rint", e.b.fmul(values, e.splat(inverse, GROUP))), vec(I32, GROUP))
    total = e.reduce(quants, e.b.add)
    e.store(e.b.trunc(quants, vec(I8, GROUP)), row.values(group))
    e.store(scale, row.scale(group))
    e.store(e.b.sub(e.const(I32, 0), total), row.negated_sum(group))
    e.store(e.b.fmul(scale, e.b.sitofp(total, F32)), row.scaled_sum(group))


def _inverse_of(e: Emit, peak: Value) -> Value:
    """What takes numbers up to `peak` to -127..127."""
    too_small = e.b.fcmp_ordered("<", peak, e.const(F32, LEAST_PEAK))
    return e.b.select(too_small, e.const(F32, 0.0), e.b.fdiv(e.const(F32, 127.0), peak))


@dataclass(frozen=True)
class HeadShape:
    """What the attention kernels are built for."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def name(self) -> str:
        return f"{self.num_heads}_{self.num_kv_heads}_{self.head_dim}_{self.kv_dtype}"

    @property
    def stored(self) -> ir.Type:
        """The IR type of one stored key or value element."""
        return {"f32": F32, "f16": F16, "bf16": I16, "int8": I8}[self.kv_dtype]

    @property
    def element_bytes(self) -> int:
        return {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}[self.kv_dtype]

    def value_offset(self, block_size: int) -> int:
        """Bytes from a head's keys in a block to its values."""
        return self.head_dim * block_size * self.element_bytes

    def scale_offset(self, block_size: int) -> int:
        """Bytes from a head's keys in a block to the key scales; the value scales follow. int8 only."""
        return 2 * self.value_offset(block_size)

    def head_bytes(self, block_size: int) -> int:
        """Bytes of one head's keys, values and scales in a block, a multiple of 64."""
        scales = 2 * 4 * block_size if self.kv_dtype == "int8" else 0
        return (self.scale_offset(block_size) + scales + 63) // 64 * 64


def emit_rotate(
    e: Emit, shape: HeadShape, block_size: int, eps: float, bias: bool, qk_norm: bool, args: list[Value]
) -> None:
    """rotate(row, k_row, v_row, angles, q_out, q_stride, kv, slot, bias, q_norm, k_norm): one token of one layer.

    Adds the biases, normalises heads (Qwen3), rotates q and k by the token's `angles` (cosines then sines, head_dim / 2
    each, half-split order), scales q by 1 / sqrt(head_dim), and stores q to `q_out` (one KV head's query heads
    together, `q_stride` to the next KV head's) and k and v to slot number `slot` of the block at `kv`. `bias` points
    to the biases of q, k and v in one float32 vector; the norms to head_dim weights.
    """
    q_row, k_row, v_row, angles, q_out, q_stride, kv, slot, biases, q_norm, k_norm = args
    dim, block = shape.head_dim, _KVBlock(e, shape, block_size, kv, slot)
    size = 4 * dim
    q_size, kv_size = shape.num_heads * size, shape.num_kv_heads * size
    if bias:
        for row, offset, length in ((q_row, 0, q_size), (k_row, q_size, kv_size), (v_row, q_size + kv_size, kv_size)):
            lanes = vec(F32, lanes_of(shape.num_kv_heads * dim))
            with e.loop(length // (4 * lanes.count)) as i:
                at = e.times(i, 4 * lanes.count)
                addend = e.load(e.at(biases, offset, at), lanes)
                e.store(e.b.fadd(e.load(e.at(row, at), lanes), addend), e.at(row, at))
    with e.loop(shape.num_kv_heads) as h:
        with e.loop(shape.group) as i:
            head = e.at(q_row, e.times(h, shape.group * size), e.times(i, size))
            target = e.at(q_out, e.b.mul(h, q_stride), e.times(i, size))
            for offset, values in _rotated(e, dim, head, angles, q_norm if qk_norm else None, eps):
                e.store(e.b.fmul(values, e.const(values.type, dim**-0.5)), e.at(target, 4 * offset))
        block.store_key(
            h, list(_rotated(e, dim, e.at(k_row, e.times(h, size)), angles, k_norm if qk_norm else None, eps))
        )
        head = e.at(v_row, e.times(h, size))
        width = lanes_of(dim)
        block.store_value(h, [(at, e.load(e.at(head, 4 * at), vec(F32, width))) for at in range(0, dim, width)])


def lanes_of(dim: int) -> int:
    """The widest vector, up to 16 lanes, that divides `dim`."""
    return next(w for w in (16, 8, 4, 2, 1) if dim % w == 0)


def _rotated(e: Emit, dim: int, head: Value, angles: Value, norm: Value | None, eps: float) -> list[tuple[int, Value]]:
    """(offset, values) pieces of one rotated head."""
    half = dim // 2
    width = lanes_of(half)
    inverse = None if norm is None else _inverse_rms(e, head, e.i64(dim), eps, lanes_of(dim))
    pieces = []

    def load(offset: int) -> Value:
        values = e.load(e.at(head, 4 * offset), vec(F32, width))
        if norm is None:
            return values
        return e.b.fmul(e.b.fmul(values, e.splat(inverse, width)), e.load(e.at(norm, 4 * offset), vec(F32, width)))

    for at in range(0, half, width):
        first, second = load(at), load(half + at)
        cos, sin = (e.load(e.at(angles, 4 * (part + at)), vec(F32, width)) for part in (0, half))
        pieces.append((at, e.b.fsub(e.b.fmul(first, cos), e.b.fmul(second, sin))))
        pieces.append((half + at, e.b.fadd(e.b.fmul(second, cos), e.b.fmul(first, sin))))
    return pieces


@dataclass(frozen=True)
class _KVBlock:
    """Writes one token's keys and values into its slot of a block: keys transposed, values as a row."""

    e: Emit
    shape: HeadShape
    block_size: int
    kv: Value
    slot: Value

    def store_key(self, head: Value, pieces: list[tuple[int, Value]]) -> None:
        e, element = self.e, self.shape.element_bytes
        base = e.at(self.kv, e.times(head, self.shape.head_bytes(self.block_size)))
        if self.shape.kv_dtype == "bf16":
            column = e.at(base, e.times(self.slot, 4))
            for at, values in pieces:
                count = values.type.count // 2
                pairs = e.b.bitcast(e.high_halves(e.bf16_bits(values)), vec(I32, count))
                for i in range(count):
                    pair = e.b.extract_element(pairs, ir.Constant(I32, i))
                    e.store(pair, e.at(column, (at // 2 + i) * 4 * self.block_size))
            return
        column = e.at(base, e.times(self.slot, element))
        for at, values in self._narrowed(base, 0, pieces):
            for lane in range(values.type.count):
                number = e.b.extract_element(values, ir.Constant(I32, lane))
                e.store(number, e.at(column, (at + lane) * self.block_size * element))

    def store_value(self, head: Value, pieces: list[tuple[int, Value]]) -> None:
        e, element = self.e, self.shape.element_bytes
        base = e.at(self.kv, e.times(head, self.shape.head_bytes(self.block_size)))
        values_at = e.at(base, self.shape.value_offset(self.block_size))
        if self.shape.kv_dtype == "bf16":
            pair, odd = e.b.lshr(self.slot, e.i64(1)), e.b.and_(self.slot, e.i64(1))
            row = e.at(values_at, e.times(pair, 4 * self.shape.head_dim), e.times(odd, 2))
            for at, values in pieces:
                halves = e.high_halves(e.bf16_bits(values))
                for lane in range(values.type.count):
                    number = e.b.extract_element(halves, ir.Constant(I32, lane))
                    e.store(number, e.at(row, 4 * (at + lane)))
            return
        row = e.at(values_at, e.times(self.slot, self.shape.head_dim * element))
        for at, values in self._narrowed(base, 1, pieces):
            e.store(values, e.at(row, at * element))

    def _narrowed(self, base: Value, which: int, pieces: list[tuple[int, Value]]) -> list[tuple[int, Value]]:
        """Pieces in the stored type; for int8 also writes the token's scale (max|x| / 127)."""
        e, kind = self.e, self.shape.kv_dtype
        if kind == "f32":
            return pieces
        if kind == "f16":
            return [(at, e.b.fptrunc(values, vec(F16, values.type.count))) for at, values in pieces]
        peak = e.const(F32, 0.0)
        for _, values in pieces:
            peak = e.maximum(peak, e.reduce(e.unary("fabs", values), e.maximum))
        inverse = _inverse_of(e, peak)
        scale_at = self.shape.scale_offset(self.block_size) + which * 4 * self.block_size
        e.store(e.b.fmul(peak, e.const(F32, 1 / 127)), e.at(base, scale_at, e.times(self.slot, 4)))
        narrowed = []
        for at, values in pieces:
            lanes = values.type.count
            quants = e.b.fptosi(e.unary("rint", e.b.fmul(values, e.splat(inverse, lanes))), vec(I32, lanes))
            narrowed.append((at, e.b.trunc(quants, vec(I8, lanes))))
        return narrowed
