"""Attention over bf16 keys and values, with the arithmetic of Intel's tile unit on every processor: IR emitters.

Keys of a head in a block are `k[head_dim / 2][16][2]`, values `v[16 / 2][head_dim][2]`: neighbours in a sum lie
together. Queries and the weights of values are rounded to bf16 as well. A sum of products is made in spans of 32 head
elements (16 at an odd end), or of the 16 keys of a block: its even products are added in order, its odd ones likewise,
each fused and from 0, and the sum of the two is added to the spans before. (Intel 64 and IA-32 Architectures Software
Developer's Manual, volume 2: TDPBF16PS.) The unit takes numbers below 2**-126 for 0; none arise, since `exp_short`
knows no small weights.

What a call takes and gives is said in `attention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.model.kernels import amx
from kvledger.model.kernels.attention import (
    BLOCK,
    KEYS,
    Blocks,
    Tile,
    emit_softmax,
    last_block,
    row_address,
    row_stride,
)
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.emit import F32, I32, Emit, Value, vec

SPAN = 32
"""Head elements summed as one; the last span of a head may be half as long."""
HEAD_UNIT = 16
"""Head sizes are multiples of it."""
_PAIR = 4
_LINE = BLOCK * _PAIR
_WORDS = vec(I32, BLOCK)


def emit_attend(e: Emit, tile: Tile, args: list[Value]) -> None:
    """attend(q, kv, block_stride, table, visible, scores, partial): one tile over one chunk."""
    q, kv, block_stride, table, visible, scores, partial = args
    num_blocks = last_block(e, tile, visible)
    blocks = Blocks(e, tile.shape, kv, block_stride, table)
    products = (_Tiles if e.isa is Isa.AMX else _Vectors)(e, tile, blocks, num_blocks, scores)
    products.scores(q)
    emit_softmax(e, tile, num_blocks, visible, scores, partial, e.exp_short, products.store_weights)
    products.values(partial)


@dataclass(frozen=True)
class _Tiles:
    """Both products on the tile unit. All rows of the attention tile are the rows of a tile register.

    Registers 0, 1, 4 and 5 have 64 bytes a row and hold queries and sums, 2 and 3 a span of keys, 6 the weights of a
    block, 7 the values of a block in 16 columns; 6 and 7 also the queries and keys of half a span.
    """

    e: Emit
    tile: Tile
    blocks: Blocks
    num_blocks: Value
    rows: Value

    def scores(self, q: Value) -> None:
        e, dim = self.e, self.tile.shape.head_dim
        wide, spans = (self.tile.rows, 64), [(at, min(SPAN, dim - at)) for at in range(0, dim, SPAN)]
        amx.emit_shapes(e, (wide, wide, (16, 64), (16, 64), wide, wide, (self.tile.rows, 32), (BLOCK // 2, 64)))
        queries = amx.space(e, 2 * self.tile.rows * dim)
        for r in range(self.tile.rows):
            for at in range(0, dim, BLOCK):
                bits = e.bf16_bits(e.load(e.at(q, 4 * (r * dim + at)), KEYS))
                e.store(e.high_halves(bits), e.at(queries, 2 * (r * dim + at)))
        resident = len(spans) <= 2
        for number, (first, _) in enumerate(spans if resident else []):
            amx.load(e, number, e.at(queries, 2 * first), 2 * dim)
        # Two blocks at once, so that one's products are made while the other's keys are read; the second may be one
        # too many.
        at_once = 2
        with e.loop(e.b.sdiv(e.b.add(self.num_blocks, e.i64(at_once - 1)), e.i64(at_once))) as p:
            block = e.times(p, at_once)
            here = [self.blocks.address(e.b.add(block, e.i64(i))) for i in range(at_once)]
            # Blocks lie scattered, so the processor cannot guess what comes next.
            ahead = [self.blocks.address(e.b.add(block, e.i64(at_once + i))) for i in range(at_once)]
            ahead += [e.at(address, self.tile.shape.value_offset(BLOCK)) for address in here]
            for sums in (4, 5):
                amx.zero(e, sums)
            for number, (first, size) in enumerate(spans):
                whole = size == SPAN
                if not (whole and resident):
                    amx.load(e, 0 if whole else 6, e.at(queries, 2 * first), 2 * dim)
                for i, address in enumerate(here):
                    keys = 2 + i if whole else 7
                    amx.load(e, keys, e.at(address, first // 2 * _LINE), _LINE)
                    amx.multiply_bf16(e, 4 + i, (number if resident else 0) if whole else 6, keys)
                for line in range(first // 2, (first + size) // 2):
                    for address in ahead:
                        e.prefetch(e.at(address, line * _LINE))
            for i in range(at_once):
                amx.store(e, 4 + i, e.at(self.rows, e.times(block, _LINE), i * _LINE), row_stride())

    def store_weights(self, r: int, block: Value, weights: Value) -> None:
        halves = self.e.high_halves(self.e.bf16_bits(weights))
        self.e.store(halves, self.e.at(row_address(self.e, self.rows, r), self.e.times(block, _LINE // 2)))

    def values(self, partial: Value) -> None:
        e, dim = self.e, self.tile.shape.head_dim
        for begin in range(0, dim, 4 * BLOCK):
            columns = list(zip((0, 1, 4, 5), range(begin, min(begin + 4 * BLOCK, dim), BLOCK), strict=False))
            for sums, _ in columns:
                amx.zero(e, sums)
            with e.loop(self.num_blocks) as i:
                values = e.at(self.blocks.address(i), self.tile.shape.value_offset(BLOCK))
                amx.load(e, 6, e.at(self.rows, e.times(i, _LINE // 2)), row_stride())
                for sums, at in columns:
                    amx.load(e, 7, e.at(values, _PAIR * at), _PAIR * dim)
                    amx.multiply_bf16(e, sums, 6, 7)
            for sums, at in columns:
                amx.store(e, sums, e.at(partial, 4 * at), 4 * dim)


@dataclass(frozen=True)
class _Vectors:
    """Both products with vectors of 16 keys or 16 columns; rounded queries and weights are kept in float32."""

    e: Emit
    tile: Tile
    blocks: Blocks
    num_blocks: Value
    rows: Value

    def scores(self, q: Value) -> None:
        e, dim, rows = self.e, self.tile.shape.head_dim, range(self.tile.rows)
        queries = amx.space(e, 4 * self.tile.rows * dim)
        for r in rows:
            for at in range(0, dim, BLOCK):
                bits = e.bf16_bits(e.load(e.at(q, 4 * (r * dim + at)), KEYS))
                e.store(bits, e.at(queries, 4 * (r * dim + at)))
        with e.loop(self.num_blocks) as i:
            block = self.blocks.address(i)
            totals = [e.variable(e.zero(KEYS)) for _ in rows]
            with e.loop((dim + SPAN - 1) // SPAN) as span:
                sums = [[e.variable(e.zero(KEYS)) for _ in range(2)] for _ in rows]
                begin = e.times(span, SPAN // 2)
                pairs = e.b.sub(e.i64(dim // 2), begin)
                with e.loop(e.b.select(e.b.icmp_signed("<", pairs, e.i64(SPAN // 2)), pairs, e.i64(SPAN // 2))) as pair:
                    at = e.b.add(begin, pair)
                    both = self._pair(e.at(block, e.times(at, _LINE)))
                    for r in rows:
                        for odd, keys in enumerate(both):
                            query = e.broadcast(e.at(queries, e.times(at, 8), 4 * (r * dim + odd)), F32, BLOCK)
                            e.set(sums[r][odd], e.fma(query, keys, e.get(sums[r][odd])))
                self._add_span(totals, sums)
            for r in rows:
                e.store(e.get(totals[r]), e.at(row_address(e, self.rows, r), e.times(i, _LINE)))

    def store_weights(self, r: int, block: Value, weights: Value) -> None:
        bits = self.e.bf16_bits(weights)
        self.e.store(bits, self.e.at(row_address(self.e, self.rows, r), self.e.times(block, _LINE)))

    def values(self, partial: Value) -> None:
        e, dim, rows = self.e, self.tile.shape.head_dim, range(self.tile.rows)
        with e.loop(dim // BLOCK) as column:
            totals = [e.variable(e.zero(KEYS)) for _ in rows]
            with e.loop(self.num_blocks) as i:
                values = e.at(self.blocks.address(i), self.tile.shape.value_offset(BLOCK), e.times(column, _LINE))
                sums = [[e.variable(e.zero(KEYS)) for _ in range(2)] for _ in rows]
                with e.loop(BLOCK // 2) as pair:
                    both = self._pair(e.at(values, e.times(pair, _PAIR * dim)))
                    for r in rows:
                        weights = e.at(row_address(e, self.rows, r), e.times(i, _LINE), e.times(pair, 8))
                        for odd, numbers in enumerate(both):
                            weight = e.broadcast(e.at(weights, 4 * odd), F32, BLOCK)
                            e.set(sums[r][odd], e.fma(weight, numbers, e.get(sums[r][odd])))
                self._add_span(totals, sums)
            for r in rows:
                e.store(e.get(totals[r]), e.at(partial, e.times(column, _LINE), 4 * r * dim))

    def _pair(self, address: Value) -> list[Value]:
        """The even and the odd numbers of 16 pairs."""
        e = self.e
        words = e.load(address, _WORDS)
        even = e.b.shl(words, e.const(_WORDS, 16))
        odd = e.b.and_(words, e.const(_WORDS, -(1 << 16)))
        return [e.b.bitcast(bits, KEYS) for bits in (even, odd)]

    def _add_span(self, totals: list[Value], sums: list[list[Value]]) -> None:
        e = self.e
        for total, (even, odd) in zip(totals, sums, strict=True):
            e.set(total, e.b.fadd(e.get(total), e.b.fadd(e.get(even), e.get(odd))))
