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
REGISTER_ROWS = 16
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
    """Both products on the tile unit. A tile register holds up to 16 rows; more are two parts, which share every key
    and value that is read.
    """

    e: Emit
    tile: Tile
    blocks: Blocks
    num_blocks: Value
    rows: Value

    @property
    def num_parts(self) -> int:
        return 1 if self.tile.rows <= REGISTER_ROWS else 2

    @property
    def part_rows(self) -> int:
        return self.tile.rows // self.num_parts

    def scores(self, q: Value) -> None:
        """Registers 0 to 3 hold the sums of two blocks, 4 and 5 spans of queries, 6 and 7 spans of their keys."""
        e, dim, parts, pair = self.e, self.tile.shape.head_dim, range(self.num_parts), range(2)
        num_spans = (dim + SPAN - 1) // SPAN
        wide, stride = (self.part_rows, 64), 2 * SPAN * num_spans
        amx.emit_shapes(e, (wide,) * 6 + ((REGISTER_ROWS, 64),) * 2)
        queries = self._rounded_queries(q, stride)
        # Two blocks at once, since products of one wait for each other; the second may be one too many.
        with e.loop(e.b.sdiv(e.at(self.num_blocks, 1), e.i64(2))) as p:
            first = e.times(p, 2)
            here = [self.blocks.address(e.at(first, i)) for i in pair]
            # Blocks lie scattered, so the processor cannot guess what comes next.
            ahead = [self.blocks.address(e.at(first, 2 + i)) for i in pair]
            ahead += [e.at(block, self.tile.shape.value_offset(BLOCK)) for block in here]
            for sums in range(2 * self.num_parts):
                amx.zero(e, sums)
            for span in range(num_spans):
                for i in pair:
                    amx.load(e, 6 + i, e.at(here[i], span * SPAN // 2 * _LINE), _LINE)
                for part in parts:
                    amx.load(e, 4 + part, e.at(queries, part * self.part_rows * stride, 2 * SPAN * span), stride)
                    for i in pair:
                        amx.multiply_bf16(e, 2 * part + i, 4 + part, 6 + i)
                for line in range(span * SPAN // 2, min((span + 1) * SPAN, dim) // 2):
                    for block in ahead:
                        e.prefetch(e.at(block, line * _LINE))
            for part in parts:
                for i in pair:
                    target = e.at(self._part(part), e.times(first, _LINE), i * _LINE)
                    amx.store(e, 2 * part + i, target, row_stride())

    def _rounded_queries(self, q: Value, stride: int) -> Value:
        """Rows of bf16, `stride` bytes apart. Behind an odd head come zeros, which meet values instead of keys."""
        e, dim = self.e, self.tile.shape.head_dim
        queries = amx.space(e, self.tile.rows * stride)
        for r in range(self.tile.rows):
            for at in range(0, stride // 2, BLOCK):
                numbers = e.load(e.at(q, 4 * (r * dim + at)), KEYS) if at < dim else e.zero(KEYS)
                e.store(e.bf16(numbers), e.at(queries, r * stride + 2 * at))
        return queries

    def store_weights(self, r: int, block: Value, weights: Value) -> None:
        self.e.store(
            self.e.bf16(weights), self.e.at(row_address(self.e, self.rows, r), self.e.times(block, _LINE // 2))
        )

    def values(self, partial: Value) -> None:
        """Registers 0 to 3 hold sums, 4 and 5 the weights of a block, 6 and 7 its values in 16 columns."""
        e, dim, parts = self.e, self.tile.shape.head_dim, range(self.num_parts)
        amx.emit_shapes(e, ((self.part_rows, 64),) * 4 + ((self.part_rows, 32),) * 2 + ((BLOCK // 2, 64),) * 2)
        at_once = 4 // self.num_parts
        for begin in range(0, dim, at_once * BLOCK):
            columns = list(enumerate(range(begin, min(begin + at_once * BLOCK, dim), BLOCK)))
            sums = {(part, i): part * at_once + i for part in parts for i, _ in columns}
            for register in sums.values():
                amx.zero(e, register)
            with e.loop(self.num_blocks) as block:
                values = e.at(self.blocks.address(block), self.tile.shape.value_offset(BLOCK))
                for part in parts:
                    amx.load(e, 4 + part, e.at(self._part(part), e.times(block, _LINE // 2)), row_stride())
                for i, at in columns:
                    amx.load(e, 6 + i % 2, e.at(values, _PAIR * at), _PAIR * dim)
                    for part in parts:
                        amx.multiply_bf16(e, sums[part, i], 4 + part, 6 + i % 2)
            for part in parts:
                for i, at in columns:
                    amx.store(e, sums[part, i], e.at(partial, 4 * (part * self.part_rows * dim + at)), 4 * dim)

    def _part(self, part: int) -> Value:
        """Where a part's scores, and then its weights, begin."""
        return row_address(self.e, self.rows, part * self.part_rows)


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
