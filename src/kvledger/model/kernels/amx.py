"""Dot products of 16 or 8 tokens with a group of a panel on Intel's tile unit (AMX int8): IR emitters.

One tile register holds the tokens x 32 bytes, one the group's 8 vectors of 64 bytes as they lie in an 8-bit panel, and
one the tokens x 16 sums in int32, which are exact. Four-bit quants are spread to bytes first, once per call. The
registers get their shapes by `emit_begin`, once per thread and step, and are given back by `emit_end`.
(Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG, TDPBSSD.)
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from kvledger.model.kernels.activations import TOKENS
from kvledger.model.kernels.emit import I8, I16, I64, VOID, Emit, Value, vec
from kvledger.model.kernels.panels import GROUP, ROWS, PanelFormat

GROUP_BYTES = ROWS * GROUP
DOTS_BYTES = 64 * TOKENS
AHEAD = 1
"""Groups that the tile unit is ahead of the vector unit, which scales its sums."""
SPACES = 2
"""Rooms for sums in memory, used in turn: a power of two above `AHEAD`."""
_BYTES = vec(I8, 64)
_WORDS = vec(I16, 32)
SIZES = (TOKENS, TOKENS // 2)
"""Tokens that one multiplication takes."""
# Rows and bytes of the tile registers: the weights of a group, then the tokens and their sums for each size.
_SHAPES = ((GROUP // 4, 64), *(shape for size in SIZES for shape in ((size, GROUP), (size, 64))))


def emit_begin(e: Emit, _: list[Value]) -> None:
    """begin(): give this thread's tile registers their shapes."""
    emit_shapes(e, _SHAPES)


def emit_shapes(e: Emit, shapes: Sequence[tuple[int, int]]) -> None:
    """Give tile registers 0, 1, ... these (rows, bytes of a row); all become zero."""
    config = [0] * 64
    config[0] = 1
    for tile, (rows, columns) in enumerate(shapes):
        config[16 + 2 * tile] = columns
        config[48 + tile] = rows
    at = space(e, 64)
    e.store(ir.Constant(_BYTES, config), at)
    e.call("llvm.x86.ldtilecfg", VOID, [_pointer(e, at)])


def emit_end(e: Emit, _: list[Value]) -> None:
    """end(): hand the tile registers back, so that the system need not save them."""
    e.call("llvm.x86.tilerelease", VOID, [])


def emit_unpacked(e: Emit, format_: PanelFormat, quants: Value, groups: Value, tokens: Value) -> Value:
    """The address of the panel's quants as signed bytes: the panel, or a copy on the stack if `tokens` is not 0."""
    if format_.bits == 8:
        return quants
    wanted = e.b.icmp_signed(">", tokens, e.i64(0))
    size = e.b.select(wanted, e.at(e.times(groups, GROUP_BYTES), 64), e.i64(64))
    space = e.b.ptrtoint(e.b.alloca(I8, size), I64)
    space = e.b.and_(e.at(space, 63), e.i64(-64))
    low = e.const_bytes(0x0F)
    with e.loop(e.b.select(wanted, groups, e.i64(0))) as g:
        source = e.at(quants, e.times(g, GROUP_BYTES // 2))
        target = e.at(space, e.times(g, GROUP_BYTES))
        for j in range(4):
            e.prefetch(e.at(source, 2048 + 64 * j))
            packed = e.load(e.at(source, 64 * j), _BYTES)
            shifted = e.b.lshr(e.b.bitcast(packed, _WORDS), ir.Constant(_WORDS, [4] * 32))
            for at, bytes_ in ((j, packed), (j + 4, e.b.bitcast(shifted, _BYTES))):
                e.store(e.b.sub(e.b.and_(bytes_, low), e.const_bytes(format_.zero)), e.at(target, 64 * at))
    return space


def emit_dots_space(e: Emit) -> Value:
    """Room for the sums of `SPACES` groups: 16 tokens x 16 int32 each."""
    return space(e, SPACES * DOTS_BYTES)


def emit_dots(e: Emit, size: int, weights: Value, tokens: Value, dots: Value) -> None:
    """Write the dot products of one group with `size` tokens to `dots`, one token every 64 bytes."""
    first = 1 + 2 * SIZES.index(size)
    quants, rows, sums = 0, first, first + 1
    zero(e, sums)
    load(e, rows, tokens, GROUP)
    load(e, quants, weights, 64)
    e.call("llvm.x86.tdpbssd", VOID, [_tile(sums), _tile(rows), _tile(quants)])
    store(e, sums, dots, 64)


def zero(e: Emit, tile: int) -> None:
    """All of a tile register becomes 0."""
    e.call("llvm.x86.tilezero", VOID, [_tile(tile)])


def load(e: Emit, tile: int, address: Value, stride: int) -> None:
    """Read a tile register, whose rows lie `stride` bytes apart."""
    e.call("llvm.x86.tileloadd64", VOID, [_tile(tile), _pointer(e, address), e.i64(stride)])


def store(e: Emit, tile: int, address: Value, stride: int) -> None:
    """Write a tile register, rows `stride` bytes apart."""
    e.call("llvm.x86.tilestored64", VOID, [_tile(tile), _pointer(e, address), e.i64(stride)])


def multiply_bf16(e: Emit, sums: int, rows: int, columns: int) -> None:
    """sums (f32) += rows x columns, both of pairs of bf16 (TDPBF16PS)."""
    e.call("llvm.x86.tdpbf16ps", VOID, [_tile(sums), _tile(rows), _tile(columns)])


def _tile(number: int) -> Value:
    return ir.Constant(I8, number)


def _pointer(e: Emit, address: Value) -> Value:
    return e.b.inttoptr(address, I8.as_pointer())


def space(e: Emit, size: int) -> Value:
    """`size` bytes of stack on a 64-byte boundary."""
    with e.b.goto_entry_block():
        slot = e.b.alloca(ir.ArrayType(I8, size))
        slot.align = 64
        address = e.b.ptrtoint(slot, I64)
    return address
