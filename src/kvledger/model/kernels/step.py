"""One forward pass of all layers over a ragged batch, run by a team of threads in step with each other.

Every thread of the team calls `run` with its own number. The pass is a sequence of phases separated by barriers; inside
a phase threads take units of work from a shared counter. Which thread does a unit never changes its result.

The functions here are compiled by Numba, which finds their types by itself; addresses are plain integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvledger.model.kernels.activations import TOKENS as TILE_TOKENS
from kvledger.model.kernels.attention import BLOCK as CHUNK_BLOCKS
from kvledger.model.kernels.attention import CHUNK as CHUNK_TOKENS
from kvledger.model.kernels.intrinsics import call, cycles, fetch_add, load_acquire, relax
from kvledger.model.kernels.jit import kept
from kvledger.model.kernels.panels import GROUP

# Columns of `Batch.ops[layer, op]`. The row after the last layer is the head: HEAD, and HEAD_REST to add the product
# with what the rounding of the head's activations lost, if
# `head_rest`, which is the bytes of a tile of its activation rows.
PANELS, KERNEL, PANEL_BYTES, NUM_PANELS, GROUPS = range(5)
Q, K, V, OUTPUT, GATE, UP, DOWN = range(7)
HEAD, HEAD_REST = range(2)
# Columns of `Batch.vectors[layer]`; the final norm is ATTENTION_NORM of the row after the last layer.
ATTENTION_NORM, FFN_NORM, BIAS, Q_NORM, K_NORM = range(5)
# Columns of `Batch.tiles`: first token, number of tokens, position of the first token, row of its block table.
FIRST, COUNT, POSITION, TABLE = range(4)
# Columns of `Batch.units`: tile, first chunk, chunk after the last, slot of the partial (-1: finish at once).
TILE, BEGIN, END, SLOT = range(4)
MAX_TILE_TOKENS = 8
FEW_TOKENS = 16
FEW_TOKENS_GRABS = 4
MANY_TOKENS_GRABS = 64
HEAD_GRABS = 16
"""In how many parts each thread takes a matrix: long runs of memory while few tokens make it wait for memory, else fine
parts for an even finish."""
SPINS = 256
"""Turns of a waiting loop, some microseconds, after which the core is offered to others."""
LATE_CYCLES = 2_000_000
"""A wait of this many cycles, about a millisecond, means that another program has a core of the team."""
LATE = 1
"""Where in `Batch.counters` the late barriers of a step are counted; the first entry counts arrivals."""
GATE_TOKENS = 64
"""Tokens whose gates and ups are in the scratch at once; 256 bytes each, so they stay in the first-level cache."""
COUNTER_BYTES = 64
COUNTERS = 8
"""Work counters per layer, each in a cache line of its own: one per matrix, `ATTEND` for the attention."""
ATTEND = 7


def _record(*names: str, tables: tuple[str, ...] = ()) -> np.dtype[np.void]:
    """int64 fields. One record is one argument for Numba, which looks at every argument of every call anew."""
    return np.dtype([*((name, np.int64) for name in names), *((name, np.int64, (MAX_TILE_TOKENS,)) for name in tables)])


# What stays the same from step to step: sizes, strides in bytes, addresses of weights and of kernels (the attention
# kernels by tokens in a tile, less one).
MODEL = _record(
    "num_layers", "hidden", "q_size", "kv_heads", "group", "head_dim", "ffn_groups", "head_rest",
    "row_tile_bytes", "ffn_tile_bytes", "layer_stride", "head_stride", "block_stride", "angle_stride",
    "embedding_stride", "embedding", "angles",
    "begin", "end", "embed", "norm_attention", "norm_ffn", "norm_final", "quantise", "gate", "rotate", "yield_thread",
    tables=("attend", "merge", "finish"),
)  # fmt: skip

# Work space: addresses, and strides in bytes. `scratch` has one part per thread.
BUFFERS = _record(
    "x", "x_stride", "rows", "ffn_rows", "qkv", "qkv_stride", "k_offset", "v_offset", "queries", "query_stride",
    "attended", "attended_stride", "scratch", "scratch_stride", "partial_offset", "partial_bytes", "partials",
    "logits", "logit_stride",
)  # fmt: skip


def filled(dtype: np.dtype[np.void], **values: object) -> np.void:
    """A record with every field set."""
    assert set(values) == set(dtype.names or ())
    record = np.zeros(1, dtype)[0]
    for name, value in values.items():
        record[name] = value
    return record


class Batch(NamedTuple):
    """One step's work on a model. Tokens are in the order of their runs; `ops` and `vectors` are the model's tables."""

    model: np.void
    ops: NDArray[np.int64]
    vectors: NDArray[np.int64]
    buffers: np.void
    pool: int
    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    token_tables: NDArray[np.int64]
    tables: NDArray[np.int32]
    tiles: NDArray[np.int64]
    units: NDArray[np.int64]
    merges: NDArray[np.int64]
    selected: NDArray[np.int64]
    counters: NDArray[np.int64]


@kept
def _barrier(model, arrivals, threads, epoch):
    """Wait until every thread has arrived `epoch + 1` times; returns that number."""
    epoch += 1
    fetch_add(arrivals, 1)
    spins = 0
    begin = cycles()
    while load_acquire(arrivals) < threads * epoch:
        relax()
        spins += 1
        if spins > SPINS:
            call(model.yield_thread, ())
    if cycles() - begin > LATE_CYCLES:
        fetch_add(arrivals + 8 * LATE, 1)
    return epoch


@kept
def _panels(op, rows, tokens, out, out_stride, begin, end):
    """Panels `begin` to `end` of one matrix; panel p writes columns 16 p to 16 p + 15 of `out`."""
    for panel in range(begin, end):
        address = op[PANELS] + panel * op[PANEL_BYTES]
        call(op[KERNEL], (address, rows, op[GROUPS], tokens, out + panel * 64, out_stride))


@kept
def _matrix(op, rows, tokens, out, out_stride, counter, share):
    """This thread's part of one matrix, taken in runs of panels."""
    size = max(1, op[NUM_PANELS] // share)
    while True:
        begin = fetch_add(counter, size)
        if begin >= op[NUM_PANELS]:
            break
        _panels(op, rows, tokens, out, out_stride, begin, min(begin + size, op[NUM_PANELS]))


@kept
def _rotate(batch, layer, t):
    """Positions, and the way of one token's keys and values into the pool."""
    model, buffers, vectors = batch.model, batch.buffers, batch.vectors[layer]
    row = buffers.qkv + t * buffers.qkv_stride
    position = batch.positions[t]
    block = batch.tables[batch.token_tables[t], position // CHUNK_BLOCKS]
    call(
        model.rotate,
        (
            row, row + buffers.k_offset, row + buffers.v_offset, model.angles + position * model.angle_stride,
            buffers.queries + t * model.group * model.head_dim * 4, buffers.query_stride,
            batch.pool + block * model.block_stride + layer * model.layer_stride, position % CHUNK_BLOCKS,
            vectors[BIAS], vectors[Q_NORM], vectors[K_NORM],
        ),
    )  # fmt: skip


@kept
def _attend(batch, layer, unit, head, scratch):
    """One unit of attention for one KV head: its chunks in order, merged as they come."""
    model, buffers = batch.model, batch.buffers
    tile = batch.tiles[batch.units[unit, TILE]]
    first, count, position = tile[FIRST], tile[COUNT], tile[POSITION]
    begin, end, slot = batch.units[unit, BEGIN], batch.units[unit, END], batch.units[unit, SLOT]
    query = buffers.queries + head * buffers.query_stride + first * model.group * model.head_dim * 4
    pool = batch.pool + layer * model.layer_stride + head * model.head_stride
    table = batch.tables[tile[TABLE]].ctypes.data
    kind = count - 1
    into = scratch + buffers.partial_offset
    if slot >= 0:
        into = buffers.partials + (slot * model.kv_heads + head) * buffers.partial_bytes
    for chunk in range(begin, end):
        target = into
        if chunk > begin:
            target = scratch + buffers.partial_offset + buffers.partial_bytes
        visible = min(position + 1 - chunk * CHUNK_TOKENS, CHUNK_TOKENS)
        blocks = table + chunk * CHUNK_BLOCKS * 4
        call(model.attend[kind], (query, pool, model.block_stride, blocks, visible, scratch, target))
        if chunk > begin:
            call(model.merge[kind], (into, target))
    if slot < 0:
        _finish(model, buffers, kind, first, head, into)


@kept
def _join(batch, index, head):
    """Merge the partial results of a tile whose chunks were units of their own."""
    model, buffers = batch.model, batch.buffers
    tile = batch.tiles[batch.merges[index, 0]]
    first_slot, end_slot = batch.merges[index, 1], batch.merges[index, 2]
    into = buffers.partials + (first_slot * model.kv_heads + head) * buffers.partial_bytes
    for slot in range(first_slot + 1, end_slot):
        other = buffers.partials + (slot * model.kv_heads + head) * buffers.partial_bytes
        call(model.merge[tile[COUNT] - 1], (into, other))
    _finish(model, buffers, tile[COUNT] - 1, tile[FIRST], head, into)


@kept
def _finish(model, buffers, kind, first, head, partial):
    out = buffers.attended + first * buffers.attended_stride + head * model.group * model.head_dim * 4
    call(model.finish[kind], (partial, out, buffers.attended_stride))


@kept
def _gate(model, buffers, ops, group, tokens, scratch):
    """32 columns of silu(gate) * up, from two panels of each matrix to one group of the next activation rows."""
    for first in range(0, tokens, GATE_TOKENS):
        count = min(GATE_TOKENS, tokens - first)
        rows = buffers.rows + first // TILE_TOKENS * model.row_tile_bytes
        out = buffers.ffn_rows + first // TILE_TOKENS * model.ffn_tile_bytes
        for op, offset in ((GATE, 0), (UP, 128)):
            # Panel p goes 64 * p bytes into its target; the scratch begins at this group's first panel.
            target = scratch + offset - 2 * group * 64
            _panels(ops[op], rows, count, target, 256, 2 * group, 2 * group + 2)
        call(model.gate, (scratch, 256, count, out, group, model.ffn_groups))


@kept
def _logits(batch, thread, threads, arrivals, epoch, counter):
    """The final norm and the head, for the selected tokens."""
    model, buffers = batch.model, batch.buffers
    head = batch.ops[model.num_layers, HEAD]
    weight = batch.vectors[model.num_layers, ATTENTION_NORM]
    selected = len(batch.selected)
    rest_tile = (selected + TILE_TOKENS - 1) // TILE_TOKENS
    for i in range(thread, selected, threads):
        x = buffers.x + batch.selected[i] * buffers.x_stride
        if model.head_rest:
            rest = rest_tile * TILE_TOKENS + i
            call(model.norm_final, (x, weight, model.hidden, buffers.rows, i, rest))
        else:
            call(model.norm_final, (x, weight, model.hidden, buffers.rows, i))
    epoch = _barrier(model, arrivals, threads, epoch)
    size = max(1, head[NUM_PANELS] // (threads * HEAD_GRABS))
    while selected:
        begin = fetch_add(counter, size)
        if begin >= head[NUM_PANELS]:
            break
        # Panel by panel, so that the second product finds the panel in the first-level cache.
        for panel in range(begin, min(begin + size, head[NUM_PANELS])):
            _panels(head, buffers.rows, selected, buffers.logits, buffers.logit_stride, panel, panel + 1)
            if model.head_rest:
                rows = buffers.rows + rest_tile * model.head_rest
                op = batch.ops[model.num_layers, HEAD_REST]
                _panels(op, rows, selected, buffers.logits, buffers.logit_stride, panel, panel + 1)
    return _barrier(model, arrivals, threads, epoch)


@kept
def _layer(batch, layer, thread, threads, arrivals, epoch, scratch):
    """One transformer layer."""
    model, buffers = batch.model, batch.buffers
    ops, vectors = batch.ops[layer], batch.vectors[layer]
    tokens = len(batch.positions)
    counters = arrivals + COUNTER_BYTES * (1 + layer * COUNTERS)
    share = threads * (FEW_TOKENS_GRABS if tokens <= FEW_TOKENS else MANY_TOKENS_GRABS)

    for t in range(thread, tokens, threads):
        x = buffers.x + t * buffers.x_stride
        call(model.norm_attention, (x, vectors[ATTENTION_NORM], model.hidden, buffers.rows, t))
    epoch = _barrier(model, arrivals, threads, epoch)

    for op, offset in ((Q, 0), (K, buffers.k_offset), (V, buffers.v_offset)):
        counter = counters + op * COUNTER_BYTES
        _matrix(ops[op], buffers.rows, tokens, buffers.qkv + offset, buffers.qkv_stride, counter, share)
    epoch = _barrier(model, arrivals, threads, epoch)

    for t in range(thread, tokens, threads):
        _rotate(batch, layer, t)
    epoch = _barrier(model, arrivals, threads, epoch)

    while True:
        i = fetch_add(counters + ATTEND * COUNTER_BYTES, 1)
        if i >= len(batch.units) * model.kv_heads:
            break
        _attend(batch, layer, i // model.kv_heads, i % model.kv_heads, scratch)
    if model.begin:
        call(model.begin, ())  # attention on bf16 gives the tile registers other shapes
    epoch = _barrier(model, arrivals, threads, epoch)

    if len(batch.merges):
        for i in range(thread, len(batch.merges) * model.kv_heads, threads):
            _join(batch, i // model.kv_heads, i % model.kv_heads)
        epoch = _barrier(model, arrivals, threads, epoch)

    for t in range(thread, tokens, threads):
        attended = buffers.attended + t * buffers.attended_stride
        call(model.quantise, (attended, model.q_size, buffers.rows, t))
    epoch = _barrier(model, arrivals, threads, epoch)

    counter = counters + OUTPUT * COUNTER_BYTES
    _matrix(ops[OUTPUT], buffers.rows, tokens, buffers.x, buffers.x_stride, counter, share)
    epoch = _barrier(model, arrivals, threads, epoch)

    for t in range(thread, tokens, threads):
        x = buffers.x + t * buffers.x_stride
        call(model.norm_ffn, (x, vectors[FFN_NORM], model.hidden, buffers.rows, t))
    epoch = _barrier(model, arrivals, threads, epoch)

    size = max(1, model.ffn_groups // share)
    while True:
        begin = fetch_add(counters + GATE * COUNTER_BYTES, size)
        if begin >= model.ffn_groups:
            break
        for group in range(begin, min(begin + size, model.ffn_groups)):
            _gate(model, buffers, ops, group, tokens, scratch)
    epoch = _barrier(model, arrivals, threads, epoch)

    counter = counters + DOWN * COUNTER_BYTES
    _matrix(ops[DOWN], buffers.ffn_rows, tokens, buffers.x, buffers.x_stride, counter, share)
    return _barrier(model, arrivals, threads, epoch)


@kept
def run(thread: int, threads: int, batch: Batch) -> None:
    """One thread's share of a step; returns when the logits of the selected tokens are complete."""
    model, buffers = batch.model, batch.buffers
    if model.begin:
        call(model.begin, ())
    scratch = buffers.scratch + thread * buffers.scratch_stride
    arrivals = batch.counters.ctypes.data
    for t in range(thread, len(batch.tokens), threads):
        x = buffers.x + t * buffers.x_stride
        call(model.embed, (model.embedding, model.embedding_stride, batch.tokens[t], model.hidden // GROUP, x))
    epoch = 0
    for layer in range(model.num_layers):
        epoch = _layer(batch, layer, thread, threads, arrivals, epoch, scratch)
    counter = arrivals + COUNTER_BYTES * (1 + model.num_layers * COUNTERS)
    _logits(batch, thread, threads, arrivals, epoch, counter)
    if model.end:
        call(model.end, ())
