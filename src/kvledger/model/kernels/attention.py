"""Attention of a tile of query rows over one chunk of cached keys: IR emitters.

Keys and values of a head in a block of 16 tokens are `k[head_dim][16]` and `v[16][head_dim]` (`HeadShape` gives the
offsets), so 16 keys are the lanes of a vector and nothing is summed across lanes but the softmax denominator.

A chunk is always the same 256 positions (`CHUNK`), whatever is in the batch. Each chunk gives a partial result, and
partial results are merged in order of position; so a decode step, which computes chunks side by side, a prompt chunk,
which computes them one after another, and a prompt computed whole give the same bits.

A *partial* is float32 [rows][head_dim] unnormalised output, then 32 row maxima, then 32 row sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.emit import F32, I32, I64, Emit, Value, vec
from kvledger.model.kernels.rows import HeadShape

BLOCK = 16
CHUNK = 256
MAX_ROWS = 32
HEAD_UNIT = 4
"""Head sizes are multiples of it."""
KEYS = vec(F32, BLOCK)
HIDDEN = -1e30


def partial_bytes(head_dim: int, rows: int = MAX_ROWS) -> int:
    """Bytes of one partial."""
    return 4 * (rows * head_dim + 2 * MAX_ROWS)


def score_bytes(rows: int = MAX_ROWS) -> int:
    """Bytes of scratch that one chunk needs: a score per row and key, and room for one block read ahead."""
    return rows * row_stride()


def tile_tokens(shape: HeadShape, isa: Isa) -> tuple[int, ...]:
    """Tile heights in tokens, largest first, that suit the registers; a tile has `group` query rows per token."""
    if shape.kv_dtype == "bf16":
        most = {Isa.AVX2: 3, Isa.AVX512: 12, Isa.AMX: MAX_ROWS, Isa.PLAIN: 4}[isa]
    else:
        most = {Isa.AVX2: 6, Isa.AVX512: 12, Isa.AMX: 12, Isa.PLAIN: 4}[isa]
    return tuple(n for n in (8, 4, 2, 1) if n == 1 or n * shape.group <= most)


@dataclass(frozen=True)
class Tile:
    """What one attention kernel is built for: `tokens` consecutive tokens, the query heads of one KV head."""

    shape: HeadShape
    tokens: int

    @property
    def rows(self) -> int:
        return self.tokens * self.shape.group


def emit_attend(e: Emit, tile: Tile, args: list[Value]) -> None:
    """attend(q, kv, block_stride, table, visible, scores, partial): one tile over one chunk.

    `q` float32 [rows][head_dim], scaled; `kv` the head's part of block 0; `table` int32 block numbers of this chunk,
    with three readable entries more; `visible` how many keys of the chunk the first token sees (each later token one
    more, but never more than the chunk holds).
    """
    q, kv, block_stride, table, visible, scores, partial = args
    num_blocks = last_block(e, tile, visible)
    blocks = Blocks(e, tile.shape, kv, block_stride, table)
    _emit_scores(e, tile, q, blocks, num_blocks, scores)

    def store_weights(r: int, block: Value, weights: Value) -> None:
        if tile.shape.kv_dtype == "int8":
            weights = e.b.fmul(weights, blocks.scales(blocks.address(block), 1))
        e.store(weights, e.at(row_address(e, scores, r), e.times(block, 4 * BLOCK)))

    emit_softmax(e, tile, num_blocks, visible, scores, partial, e.exp, store_weights)
    _emit_values(e, tile, blocks, num_blocks, scores, partial)


def last_block(e: Emit, tile: Tile, visible: Value) -> Value:
    """How many blocks of the chunk the last token of the tile sees."""
    last = e.b.add(visible, e.i64(tile.tokens - 1))
    last = e.b.select(e.b.icmp_signed("<", last, e.i64(CHUNK)), last, e.i64(CHUNK))
    return e.b.sdiv(e.b.add(last, e.i64(BLOCK - 1)), e.i64(BLOCK))


@dataclass(frozen=True)
class Blocks:
    """Addresses of the blocks that a table names."""

    e: Emit
    shape: HeadShape
    kv: Value
    stride: Value
    table: Value

    def address(self, index: Value) -> Value:
        number = self.e.b.sext(self.e.load(self.e.at(self.table, self.e.times(index, 4)), I32), I64)
        return self.e.at(self.kv, self.e.b.mul(number, self.stride))

    def scales(self, address: Value, which: int) -> Value:
        return self.e.load(self.e.at(address, self.shape.scale_offset(BLOCK) + which * 4 * BLOCK), KEYS)


def row_stride() -> int:
    """Bytes from one row's scores to the next row's."""
    return 4 * (CHUNK + BLOCK)


def row_address(e: Emit, scores: Value, row: int) -> Value:
    return e.at(scores, row * row_stride())


def _emit_scores(e: Emit, tile: Tile, q: Value, blocks: Blocks, num_blocks: Value, scores: Value) -> None:
    shape, rows = tile.shape, range(tile.rows)
    element = shape.element_bytes
    # Few rows leave the multipliers waiting for one another, so two blocks go at once; the second may be one too many.
    at_once = 2 if tile.rows <= 4 else 1
    passes = e.b.sdiv(e.b.add(num_blocks, e.i64(at_once - 1)), e.i64(at_once))
    step = HEAD_UNIT
    with e.loop(passes) as p:
        first = e.times(p, at_once)
        here = [blocks.address(e.b.add(first, e.i64(i))) for i in range(at_once)]
        # Blocks lie scattered, so the processor cannot guess what comes next: the keys of the next blocks, and these
        # blocks' values, which are wanted once the scores are complete.
        ahead = [blocks.address(e.b.add(first, e.i64(at_once + i))) for i in range(at_once)]
        ahead += [e.at(block, shape.value_offset(BLOCK)) for block in here]
        sums = [[e.variable(e.const(KEYS, 0.0)) for _ in here] for _ in rows]
        with e.loop(shape.head_dim // step) as outer:
            for inner in range(step):
                key_at = e.at(e.times(outer, step * BLOCK * element), inner * BLOCK * element)
                keys = [e.load_f32(e.at(block, key_at), BLOCK, shape.stored) for block in here]
                if inner * BLOCK * element % 64 == 0:
                    for block in ahead:
                        e.prefetch(e.at(block, key_at))
                for r in rows:
                    query = e.broadcast(e.at(q, e.times(outer, step * 4), 4 * (r * shape.head_dim + inner)), F32, BLOCK)
                    for i, key in enumerate(keys):
                        e.set(sums[r][i], e.fma(query, key, e.get(sums[r][i])))
        for i, block in enumerate(here):
            factor = blocks.scales(block, 0) if shape.kv_dtype == "int8" else None
            for r in rows:
                score = e.get(sums[r][i])
                if factor is not None:
                    score = e.b.fmul(score, factor)
                e.store(score, e.at(row_address(e, scores, r), e.times(first, 4 * BLOCK), i * 4 * BLOCK))


def emit_softmax(
    e: Emit,
    tile: Tile,
    num_blocks: Value,
    visible: Value,
    scores: Value,
    partial: Value,
    exp: Callable[[Value], Value],
    store_weights: Callable[[int, Value, Value], None],
) -> None:
    """Scores become weights exp(score - row maximum), exactly 0 for keys a row may not see.

    `store_weights(row, block, weights)` puts a block's weights where its scores were, or before them. The row's maximum
    and sum go to `partial`.
    """
    rows = range(tile.rows)
    open_blocks = e.b.sdiv(visible, e.i64(BLOCK))
    lanes = ir.Constant(vec(I32, BLOCK), list(range(BLOCK)))
    rows_end = tile.rows * tile.shape.head_dim * 4

    def score(r: int, block: Value) -> Value:
        return e.load(e.at(row_address(e, scores, r), e.times(block, 4 * BLOCK)), KEYS)

    def seen(r: int, block: Value) -> Value:
        limit = e.splat(e.b.trunc(e.b.add(visible, e.i64(r // tile.shape.group)), I32), BLOCK)
        key = e.b.add(lanes, e.splat(e.b.trunc(e.times(block, BLOCK), I32), BLOCK))
        return e.b.icmp_signed("<", key, limit)

    # All rows at once, since one row's maxima wait for each other.
    peaks = [e.variable(e.const(KEYS, HIDDEN)) for _ in rows]
    with e.loop(open_blocks) as i:
        for r in rows:
            e.set(peaks[r], e.maximum(score(r, i), e.get(peaks[r])))
    with e.loop(num_blocks, open_blocks) as i:
        for r in rows:
            e.set(peaks[r], e.maximum(e.b.select(seen(r, i), score(r, i), e.const(KEYS, HIDDEN)), e.get(peaks[r])))
    for r in rows:
        peak = e.reduce(e.get(peaks[r]), e.maximum)
        sums = e.variable(e.zero(KEYS))
        for first, last in ((e.i64(0), open_blocks), (open_blocks, num_blocks)):
            with e.loop(last, first) as i:
                weights = exp(e.b.fsub(score(r, i), e.splat(peak, BLOCK)))
                if first is open_blocks:
                    weights = e.b.select(seen(r, i), weights, e.zero(KEYS))
                e.set(sums, e.b.fadd(e.get(sums), weights))
                store_weights(r, i, weights)
        e.store(peak, e.at(partial, rows_end + 4 * r))
        e.store(e.reduce(e.get(sums), e.b.fadd), e.at(partial, rows_end + 4 * (MAX_ROWS + r)))


def _emit_values(e: Emit, tile: Tile, blocks: Blocks, num_blocks: Value, scores: Value, partial: Value) -> None:
    """The weighted sum of values, key by key in order; as many column groups at once as the registers hold."""
    shape, rows = tile.shape, range(tile.rows)
    element = shape.element_bytes
    pieces = _pieces(shape.head_dim)
    registers = 6 if e.isa is Isa.AVX2 else 24
    at_once = max(1, registers // tile.rows)
    step = 4
    for begin in range(0, len(pieces), at_once):
        columns = pieces[begin : begin + at_once]
        sums = [[e.variable(e.const(vec(F32, width), 0.0)) for _, width in columns] for _ in rows]
        with e.loop(num_blocks) as i:
            values = e.at(blocks.address(i), shape.value_offset(BLOCK))
            with e.loop(BLOCK // step) as outer:
                for inner in range(step):
                    row_at = e.at(e.times(outer, step * shape.head_dim * element), inner * shape.head_dim * element)
                    loaded = [
                        e.load_f32(e.at(values, row_at, at * element), width, shape.stored) for at, width in columns
                    ]
                    for r in rows:
                        key_at = e.at(e.times(i, 4 * BLOCK), e.times(outer, 4 * step), 4 * inner)
                        weight = e.load(e.at(row_address(e, scores, r), key_at), F32)
                        for c, (_, width) in enumerate(columns):
                            e.set(sums[r][c], e.fma(e.splat(weight, width), loaded[c], e.get(sums[r][c])))
        for r in rows:
            for c, (at, _) in enumerate(columns):
                e.store(e.get(sums[r][c]), e.at(partial, 4 * (r * shape.head_dim + at)))


def emit_merge(e: Emit, tile: Tile, args: list[Value]) -> None:
    """merge(into, other): join the partial of later keys into that of all earlier ones."""
    into, other = args
    rows_end = 4 * tile.rows * tile.shape.head_dim
    wide = vec(F32, MAX_ROWS)
    peak_a, peak_b = (e.load(e.at(p, rows_end), wide) for p in (into, other))
    sum_a, sum_b = (e.load(e.at(p, rows_end + 4 * MAX_ROWS), wide) for p in (into, other))
    peak = e.maximum(peak_a, peak_b)
    scale_a, scale_b = e.exp(e.b.fsub(peak_a, peak)), e.exp(e.b.fsub(peak_b, peak))
    e.store(peak, e.at(into, rows_end))
    e.store(e.fma(sum_b, scale_b, e.b.fmul(sum_a, scale_a)), e.at(into, rows_end + 4 * MAX_ROWS))
    for r in range(tile.rows):
        factor_a, factor_b = (e.b.extract_element(scale, ir.Constant(I32, r)) for scale in (scale_a, scale_b))
        for at, width in _pieces(tile.shape.head_dim):
            offset = 4 * (r * tile.shape.head_dim + at)
            lanes = vec(F32, width)
            earlier, later = (e.load(e.at(p, offset), lanes) for p in (into, other))
            joined = e.fma(later, e.splat(factor_b, width), e.b.fmul(earlier, e.splat(factor_a, width)))
            e.store(joined, e.at(into, offset))


def emit_finish(e: Emit, tile: Tile, args: list[Value]) -> None:
    """finish(partial, out, out_stride): divide by the row sums and write each token's heads to its row of `out`."""
    partial, out, out_stride = args
    dim, group = tile.shape.head_dim, tile.shape.group
    rows_end = 4 * tile.rows * dim
    for r in range(tile.rows):
        total = e.load(e.at(partial, rows_end + 4 * (MAX_ROWS + r)), F32)
        inverse = e.b.fdiv(e.const(F32, 1.0), total)
        target = e.at(out, e.times(out_stride, r // group), 4 * dim * (r % group))
        for at, width in _pieces(dim):
            values = e.load(e.at(partial, 4 * (r * dim + at)), vec(F32, width))
            e.store(e.b.fmul(values, e.splat(inverse, width)), e.at(target, 4 * at))


def _pieces(dim: int) -> list[tuple[int, int]]:
    """(offset, lanes) pieces of a head, 16 lanes as long as they last."""
    return [(at, min(16, dim - at)) for at in range(0, dim, 16)]
