"""One forward pass of all layers over a ragged batch, run by a team of threads in step with each other.

Every thread of the team calls `run` with its own number. The pass is a sequence of phases separated by barriers; inside a
phase threads take units of work from a shared counter. Which thread does a unit never changes its result.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from kvledger.model.kernels.intrinsics import call, fetch_add, load_acquire, relax

# Columns of `Model.ops[layer, op]`; the head is op 0 of the row after the last layer.
PANELS, KERNEL, PANEL_BYTES, NUM_PANELS, GROUPS = range(5)
Q, K, V, O, GATE, UP, DOWN = range(7)
# Columns of `Model.vectors[layer]`; the final norm is ATTENTION_NORM of the row after the last layer.
ATTENTION_NORM, FFN_NORM, BIAS, Q_NORM, K_NORM = range(5)
# Columns of `Batch.tiles`: first token, number of tokens, position of the first token, row of its block table.
FIRST, COUNT, POSITION, TABLE = range(4)
# Columns of `Batch.units`: tile, first chunk, chunk after the last, slot of the partial (-1: finish at once).
TILE, BEGIN, END, SLOT = range(4)
PARALLEL_GRABS = 4
CHUNK_TOKENS = 256
CHUNK_BLOCKS = 16
SPINS = 4096
TILE_TOKENS = 16
GATE_TOKENS = 64
"""Tokens whose gates and ups are in the scratch at once; 256 bytes each, so they stay in the first-level cache."""
COUNTER_BYTES = 64


class Model(NamedTuple):
    """What stays the same from step to step: addresses of weights and kernels, and sizes. Strides are in bytes."""

    ops: NDArray[np.int64]
    vectors: NDArray[np.int64]
    embedding: int
    embedding_stride: int
    embed: int
    num_layers: int
    hidden: int
    q_size: int
    kv_heads: int
    group: int
    head_dim: int
    ffn_groups: int
    row_tile_bytes: int
    ffn_tile_bytes: int
    begin: int
    end: int
    norm_attention: int
    norm_ffn: int
    norm_final: int
    quantise: int
    gate: int
    rotate: int
    attend: NDArray[np.int64]
    merge: NDArray[np.int64]
    finish: NDArray[np.int64]
    angles: int
    angle_stride: int
    layer_stride: int
    head_stride: int
    block_stride: int
    yield_thread: int


class Buffers(NamedTuple):
    """Work space, addresses and strides in bytes. `scratch` has one part per thread."""

    x: int
    x_stride: int
    rows: int
    ffn_rows: int
    qkv: int
    qkv_stride: int
    k_offset: int
    v_offset: int
    queries: int
    query_stride: int
    attended: int
    attended_stride: int
    scratch: int
    scratch_stride: int
    partial_offset: int
    partial_bytes: int
    partials: int
    logits: int
    logit_stride: int


class Batch(NamedTuple):
    """One step's work. Tokens are in the order of their runs."""

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


@njit(nogil=True, cache=True)
def _barrier(arrivals, threads, epoch, yield_thread):
    """Wait until every thread has arrived `epoch` times."""
    fetch_add(arrivals, 1)
    spins = 0
    while load_acquire(arrivals) < threads * epoch:
        relax()
        spins += 1
        if spins > SPINS:
            call(yield_thread, ())


@njit(nogil=True, cache=True)
def _linear(op, rows, tokens, out, out_stride, begin, end):
    """Panels `begin` to `end` of one matrix."""
    for panel in range(begin, end):
        address = op[PANELS] + panel * op[PANEL_BYTES]
        call(op[KERNEL], (address, rows, op[GROUPS], tokens, out + panel * 64, out_stride))


@njit(nogil=True, cache=True)
def _attend(model, buffers, batch, layer, unit, head, scratch):
    """One unit of attention for one KV head: its chunks in order, merged as they come."""
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


@njit(nogil=True, cache=True)
def _finish(model, buffers, kind, first, head, partial):
    out = buffers.attended + first * buffers.attended_stride + head * model.group * model.head_dim * 4
    call(model.finish[kind], (partial, out, buffers.attended_stride))


@njit(nogil=True, cache=True)
def _gate(model, buffers, ops, group, tokens, scratch):
    """32 columns of silu(gate) * up, from two panels of each matrix to one group of the next activation rows."""
    for first in range(0, tokens, GATE_TOKENS):
        count = min(GATE_TOKENS, tokens - first)
        rows = buffers.rows + first // TILE_TOKENS * model.row_tile_bytes
        out = buffers.ffn_rows + first // TILE_TOKENS * model.ffn_tile_bytes
        for op, offset in ((GATE, 0), (UP, 128)):
            # `_linear` puts panel p 64 * p bytes into its target; the scratch begins at this group's first panel.
            target = scratch + offset - 2 * group * 64
            _linear(ops[op], rows, count, target, 256, 2 * group, 2 * group + 2)
        call(model.gate, (scratch, 256, count, out, group, model.ffn_groups))


@njit(nogil=True, cache=True)
def run(thread, threads, model, buffers, batch):
    """One thread's share of a step; returns when the logits of the selected tokens are complete."""
    tokens = len(batch.positions)
    scratch = buffers.scratch + thread * buffers.scratch_stride
    arrivals = batch.counters.ctypes.data
    counter = arrivals
    epoch = 0
    if model.begin:
        call(model.begin, ())
    share = threads * PARALLEL_GRABS if tokens <= 16 else threads * 64
    for t in range(thread, tokens, threads):
        x = buffers.x + t * buffers.x_stride
        call(model.embed, (model.embedding, model.embedding_stride, batch.tokens[t], model.hidden // 32, x))
    for layer in range(model.num_layers):
        ops, vectors = model.ops[layer], model.vectors[layer]

        for t in range(thread, tokens, threads):
            x = buffers.x + t * buffers.x_stride
            call(model.norm_attention, (x, vectors[ATTENTION_NORM], model.hidden, buffers.rows, t))
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        counter += COUNTER_BYTES
        q_end = ops[Q, NUM_PANELS]
        k_end = q_end + ops[K, NUM_PANELS]
        v_end = k_end + ops[V, NUM_PANELS]
        size = max(1, v_end // share)
        while True:
            begin = fetch_add(counter, size)
            if begin >= v_end:
                break
            end = min(begin + size, v_end)
            for op, low, high, offset in (
                (Q, 0, q_end, 0),
                (K, q_end, k_end, buffers.k_offset),
                (V, k_end, v_end, buffers.v_offset),
            ):
                _linear(
                    ops[op], buffers.rows, tokens, buffers.qkv + offset, buffers.qkv_stride,
                    max(begin, low) - low, min(end, high) - low,
                )  # fmt: skip
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        for t in range(thread, tokens, threads):
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
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        counter += COUNTER_BYTES
        while True:
            i = fetch_add(counter, 1)
            if i >= len(batch.units) * model.kv_heads:
                break
            _attend(model, buffers, batch, layer, i // model.kv_heads, i % model.kv_heads, scratch)
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        if len(batch.merges):
            for i in range(thread, len(batch.merges) * model.kv_heads, threads):
                merge, head = batch.merges[i // model.kv_heads], i % model.kv_heads
                into = buffers.partials + (merge[1] * model.kv_heads + head) * buffers.partial_bytes
                tile = batch.tiles[merge[0]]
                for slot in range(merge[1] + 1, merge[2]):
                    other = buffers.partials + (slot * model.kv_heads + head) * buffers.partial_bytes
                    call(model.merge[tile[COUNT] - 1], (into, other))
                _finish(model, buffers, tile[COUNT] - 1, tile[FIRST], head, into)
            epoch += 1
            _barrier(arrivals, threads, epoch, model.yield_thread)

        for t in range(thread, tokens, threads):
            attended = buffers.attended + t * buffers.attended_stride
            call(model.quantise, (attended, model.q_size, buffers.rows, t))
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        counter += COUNTER_BYTES
        size = max(1, ops[O, NUM_PANELS] // share)
        while True:
            begin = fetch_add(counter, size)
            if begin >= ops[O, NUM_PANELS]:
                break
            end = min(begin + size, ops[O, NUM_PANELS])
            _linear(ops[O], buffers.rows, tokens, buffers.x, buffers.x_stride, begin, end)
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        for t in range(thread, tokens, threads):
            x = buffers.x + t * buffers.x_stride
            call(model.norm_ffn, (x, vectors[FFN_NORM], model.hidden, buffers.rows, t))
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        counter += COUNTER_BYTES
        size = max(1, model.ffn_groups // share)
        while True:
            begin = fetch_add(counter, size)
            if begin >= model.ffn_groups:
                break
            for group in range(begin, min(begin + size, model.ffn_groups)):
                _gate(model, buffers, ops, group, tokens, scratch)
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

        counter += COUNTER_BYTES
        size = max(1, ops[DOWN, NUM_PANELS] // share)
        while True:
            begin = fetch_add(counter, size)
            if begin >= ops[DOWN, NUM_PANELS]:
                break
            end = min(begin + size, ops[DOWN, NUM_PANELS])
            _linear(ops[DOWN], buffers.ffn_rows, tokens, buffers.x, buffers.x_stride, begin, end)
        epoch += 1
        _barrier(arrivals, threads, epoch, model.yield_thread)

    final = model.vectors[model.num_layers]
    for i in range(thread, len(batch.selected), threads):
        x = buffers.x + batch.selected[i] * buffers.x_stride
        call(model.norm_final, (x, final[ATTENTION_NORM], model.hidden, buffers.rows, i))
    epoch += 1
    _barrier(arrivals, threads, epoch, model.yield_thread)
    head = model.ops[model.num_layers, 0]
    counter += COUNTER_BYTES
    size = max(1, head[NUM_PANELS] // (threads * 16))
    while len(batch.selected):
        begin = fetch_add(counter, size)
        if begin >= head[NUM_PANELS]:
            break
        end = min(begin + size, head[NUM_PANELS])
        _linear(head, buffers.rows, len(batch.selected), buffers.logits, buffers.logit_stride, begin, end)
    epoch += 1
    _barrier(arrivals, threads, epoch, model.yield_thread)
    if model.end:
        call(model.end, ())
