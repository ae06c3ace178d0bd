"""Attention kernels: bit for bit the plain twin on every instruction set, and close to softmax in float64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from kvledger.model.kernels.attention import BLOCK, CHUNK, MAX_ROWS, Tile, partial_bytes, score_bytes, tile_tokens
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.panels import aligned
from kvledger.model.kernels.rows import HeadShape
from tests.model.kernel_calls import ISAS, Calls, bf16_bits, bf16_values, f32, quantised, same_bits

CHUNKS = 3
SHAPES = [
    HeadShape(3, 1, 64, "f16"),
    HeadShape(1, 1, 80, "int8"),
    HeadShape(7, 1, 40, "f32"),
    HeadShape(3, 1, 64, "bf16"),
    HeadShape(7, 1, 80, "bf16"),
    *(
        pytest.param(shape, marks=pytest.mark.slow)
        for shape in (
            HeadShape(4, 1, 128, "f16"),
            HeadShape(16, 1, 8, "int8"),
            HeadShape(2, 1, 64, "f32"),
            HeadShape(16, 1, 16, "bf16"),
            HeadShape(1, 1, 112, "bf16"),
            HeadShape(2, 1, 128, "bf16"),
        )
    ),
]


class Head(NamedTuple):
    """One KV head's part of a pool: bytes, where it begins, block numbers, and the values stored [tokens, head_dim]."""

    pool: NDArray[np.uint8]
    offset: int
    table: NDArray[np.int32]
    keys: NDArray[np.float64]
    values: NDArray[np.float64]


def head(shape: HeadShape) -> Head:
    """Random keys and values for `CHUNKS` chunks in blocks of no particular order, among blocks of other things."""
    random, dim = np.random.default_rng(shape.head_dim), shape.head_dim
    num_blocks = CHUNKS * CHUNK // BLOCK
    keys, values = random.standard_normal((2, num_blocks, BLOCK, dim)).astype(f32)
    keys *= 2
    offset = shape.head_bytes(BLOCK)  # this is the second head of each block
    pool = aligned((num_blocks + 5, 3 * offset), np.uint8)
    table = random.permutation(num_blocks + 5).astype(np.int32)
    for number, k, v in zip(table, keys, values, strict=False):
        here, value_at, scale_at = pool[number, offset:], shape.value_offset(BLOCK), shape.scale_offset(BLOCK)
        if shape.kv_dtype == "int8":
            (k_quants, k_scales), (v_quants, v_scales) = quantised(k), quantised(v)
            here[:value_at].view(np.int8)[:] = k_quants.T.ravel()
            here[value_at:scale_at].view(np.int8)[:] = v_quants.ravel()
            here[scale_at : scale_at + 8 * BLOCK].view(f32)[:] = np.concatenate([k_scales, v_scales])
            k[...], v[...] = k_quants * k_scales[:, None], v_quants * v_scales[:, None]
        elif shape.kv_dtype == "bf16":
            here[:value_at].view(np.uint16)[:] = bf16_bits(k).reshape(BLOCK, -1, 2).transpose(1, 0, 2).ravel()
            here[value_at:scale_at].view(np.uint16)[:] = bf16_bits(v).reshape(-1, 2, dim).transpose(0, 2, 1).ravel()
            k[...], v[...] = bf16_values(bf16_bits(k)), bf16_values(bf16_bits(v))
        else:
            dtype = {"f16": np.float16, "f32": f32}[shape.kv_dtype]
            here[:value_at].view(dtype)[:] = k.T.ravel()
            here[value_at:scale_at].view(dtype)[:] = v.ravel()
            k[...], v[...] = k.astype(dtype), v.astype(dtype)
    flat = (array.astype(np.float64).reshape(-1, dim) for array in (keys, values))
    return Head(pool, offset, table, *flat)


def queries(tile: Tile) -> NDArray[np.float32]:
    """For bf16, ones that rounding does not change."""
    q = np.random.default_rng(1).standard_normal((tile.rows, tile.shape.head_dim))
    q = (q / np.sqrt(tile.shape.head_dim)).astype(f32)
    return bf16_values(bf16_bits(q)) if tile.shape.kv_dtype == "bf16" else q


def tolerance(shape: HeadShape) -> float:
    """How far a result may be from the formula: bf16 rounds each weight of a value by up to 2**-9 of it."""
    return 5e-3 if shape.kv_dtype == "bf16" else 2e-6


def attend(isa: Isa, tile: Tile, of: Head, chunk: int, visible: int) -> NDArray[np.float32]:
    """The partial of one chunk."""
    calls = Calls(isa)
    partial = np.full(partial_bytes(tile.shape.head_dim) // 4 + 1, 5, f32)
    scores = aligned((score_bytes() // 4,), f32)
    blocks = of.table[chunk * CHUNK // BLOCK :]
    stride = of.pool.strides[0]
    kernel = calls.kernels.attend(tile)
    calls(kernel, queries(tile), of.pool[:, of.offset :], stride, blocks, visible, scores, partial)
    assert partial[-1] == 5
    return partial


def merge(isa: Isa, tile: Tile, into: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    calls = Calls(isa)
    calls(calls.kernels.merge(tile), into, other)


def finish(isa: Isa, tile: Tile, partial: NDArray[np.float32]) -> NDArray[np.float32]:
    """The attended heads [tokens, group, head_dim], from a row of `out` that holds two KV heads."""
    calls, shape = Calls(isa), tile.shape
    out = np.full((tile.tokens, 2 * shape.group, shape.head_dim), 5, f32)
    calls(calls.kernels.finish(tile), partial, out[:, shape.group :], out.strides[0])
    assert (out[:, : shape.group] == 5).all()
    return out[:, shape.group :]


def used(tile: Tile, partial: NDArray[np.float32]) -> NDArray[np.float32]:
    """A partial without the maxima and sums of rows that the tile does not have."""
    size, rows = tile.rows * tile.shape.head_dim, tile.rows
    return np.concatenate([partial[: size + rows], partial[size + MAX_ROWS : size + MAX_ROWS + rows]])


def softmax_of_values(tile: Tile, of: Head, first: int, visible: int) -> NDArray[np.float64]:
    """The formula in float64, over keys `first` and on of which the first token sees `visible`."""
    out = np.empty((tile.rows, tile.shape.head_dim))
    for row, q in enumerate(queries(tile).astype(np.float64)):
        keys = slice(first, min(first + visible + row // tile.shape.group, len(of.keys)))
        scores = of.keys[keys] @ q
        weights = np.exp(scores - scores.max())
        out[row] = weights @ of.values[keys] / weights.sum()
    return out.reshape(tile.tokens, tile.shape.group, -1)


def tiles(isa: Isa, shape: HeadShape) -> list[Tile]:
    """The tallest tile that this instruction set has for the shape, and that of one token."""
    heights = tile_tokens(shape, isa)
    return [Tile(shape, n) for n in sorted({1, heights[0]})]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("isa", ISAS)
def test_one_chunk(isa: Isa, shape: HeadShape) -> None:
    of = head(shape)
    for tile in tiles(isa, shape):
        # Ends of blocks; a tile that ends with the chunk, and one that ends before it but for the last key.
        ends = {CHUNK, CHUNK - 1, CHUNK - tile.tokens + 1, CHUNK - tile.tokens}
        for visible in sorted({1, 15, 16, 17, *ends}):
            ours, twin = (attend(which, tile, of, 1, visible) for which in (isa, Isa.PLAIN))
            assert same_bits(used(tile, ours), used(tile, twin)), (tile, visible)
            ours, twin = (finish(which, tile, twin) for which in (isa, Isa.PLAIN))
            assert same_bits(ours, twin)
            limited = Head(*of[:3], of.keys[: 2 * CHUNK], of.values[: 2 * CHUNK])  # no key after the chunk's last
            assert np.allclose(ours, softmax_of_values(tile, limited, CHUNK, visible), rtol=0, atol=tolerance(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.parametrize("isa", ISAS)
def test_chunks_merged_in_order(isa: Isa, shape: HeadShape) -> None:
    of = head(shape)
    for tile in tiles(isa, shape):
        result = []
        for which in (isa, Isa.PLAIN):
            into = attend(which, tile, of, 0, CHUNK)
            for chunk, visible in ((1, CHUNK), (2, 100)):
                merge(which, tile, into, attend(which, tile, of, chunk, visible))
            result.append((used(tile, into), finish(which, tile, into)))
        (ours, out), (twin, twin_out) = result
        assert same_bits(ours, twin)
        assert same_bits(out, twin_out)
        assert np.allclose(out, softmax_of_values(tile, of, 0, 2 * CHUNK + 100), rtol=0, atol=tolerance(shape))


@pytest.mark.parametrize("isa", ISAS)
def test_keys_that_a_row_may_not_see_do_not_matter(isa: Isa) -> None:
    # Unwritten slots hold anything finite; here numbers that would win every softmax.
    shape = HeadShape(3, 1, 64, "f16")
    tile, of = tiles(isa, shape)[-1], head(shape)
    visible = 20
    before = attend(isa, tile, of, 0, visible)
    for block, slot in ((1, slot) for slot in range(visible + tile.tokens - 1 - BLOCK, BLOCK)):
        here = of.pool[of.table[block], of.offset :]
        here[: shape.value_offset(BLOCK)].view(np.float16).reshape(-1, BLOCK)[:, slot] = 6e4
        here[shape.value_offset(BLOCK) : shape.scale_offset(BLOCK)].view(np.float16).reshape(BLOCK, -1)[slot] = 6e4
    assert same_bits(used(tile, before), used(tile, attend(isa, tile, of, 0, visible)))


@pytest.mark.parametrize("isa", ISAS)
def test_queries_are_rounded_to_bf16(isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = HeadShape(3, 1, 64, "bf16")
    tile, of = tiles(isa, shape)[-1], head(shape)
    rounded = attend(isa, tile, of, 0, CHUNK)
    unrounded = queries(tile) * f32(1 + 2**-10)  # less than half a step of bf16
    assert not same_bits(unrounded, queries(tile))
    monkeypatch.setattr("tests.model.test_kernels_attention.queries", lambda _: unrounded)
    assert same_bits(used(tile, rounded), used(tile, attend(isa, tile, of, 0, CHUNK)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("peak", [3e4, -3e4])
def test_extreme_scores(isa: Isa, peak: float) -> None:
    # One key far above the others takes everything; one far below gets exactly nothing.
    shape = HeadShape(1, 1, 64, "f32")
    tile, of = Tile(shape, 1), head(shape)
    q = queries(tile)[0].astype(np.float64)
    key = (q * peak / (q @ q)).astype(f32)
    of.pool[of.table[0], of.offset :][: shape.value_offset(BLOCK)].view(f32).reshape(-1, BLOCK)[:, 3] = key
    of.keys[3] = key
    ours, twin = (finish(which, tile, attend(which, tile, of, 0, 40)) for which in (isa, Isa.PLAIN))
    assert same_bits(ours, twin)
    assert np.allclose(ours, softmax_of_values(tile, of, 0, 40), rtol=0, atol=tolerance(shape))
