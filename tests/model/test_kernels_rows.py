"""Row-wise kernels: bit for bit the plain twin on every instruction set, and close to their formula in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvledger.model.kernels import plain_numbers
from kvledger.model.kernels.activations import TOKENS, tile_bytes
from kvledger.model.kernels.attention import BLOCK
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.panels import GROUP, aligned
from kvledger.model.kernels.rows import HeadShape
from tests.model.kernel_calls import (
    VECTOR_ISAS,
    Calls,
    bf16_bits,
    bf16_values,
    f32,
    f32_rows,
    int8_rows,
    quantised,
    same_bits,
)

EPS = 1e-5
COLS = 96
LEAST = 2.0**-126  # of the normal float32 numbers: below it precision goes
PLACES = (0, 15, 16, 37)  # of a row: first and last of a tile, first of the next, another


def rows_of_interest() -> NDArray[np.float32]:
    """Ordinary numbers, and in the first rows: zeros, large and tiny ones, one peak per group, and ties of rint."""
    x = np.random.default_rng(0).standard_normal((12, COLS)).astype(f32)
    x[0] = 0
    x[1, GROUP : 2 * GROUP] = 0
    x[2] *= f32(1e15)
    x[3] *= f32(1e-20)
    x[4] *= f32(1e-38)  # 127 / peak would be infinite
    x[5] = 0
    x[5, ::GROUP] = -3
    x[6] = np.arange(COLS) % GROUP * f32(0.5)
    x[6, ::GROUP] = 127  # quants that end in .5
    return x


def tiles(cols: int, int8: bool, num_rows: int = 48) -> NDArray[np.uint8]:
    """Activation rows full of bytes that a kernel must overwrite where it writes, and leave elsewhere."""
    size = tile_bytes(cols, int8)
    memory = aligned((-(-num_rows // TOKENS), size), np.uint8)
    memory[...] = np.random.default_rng(3).integers(0, 256, memory.shape, np.uint8)
    return memory


def f32_row(memory: NDArray[np.uint8], cols: int, token: int) -> NDArray[np.float32]:
    return memory.view(f32).reshape(-1, cols)[token]


def int8_row(memory: NDArray[np.uint8], cols: int, token: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Quants [groups, 32] and scales [groups] of a row; the two sums are checked against them."""
    tile, lane, groups = memory[token // TOKENS], token % TOKENS, cols // GROUP
    quants = tile[: TOKENS * cols].view(np.int8).reshape(groups, TOKENS, GROUP)[:, lane].astype(np.int64)
    scales, negated, scaled = (
        tile[TOKENS * cols :].view(dtype).reshape(3, groups, TOKENS)[part, :, lane]
        for part, dtype in enumerate((f32, np.int32, f32))
    )
    assert (negated == -quants.sum(axis=1)).all()
    assert (scaled == scales * quants.sum(axis=1).astype(f32)).all()
    return quants, scales.astype(np.float64)


def normed(x: NDArray[np.floating], weight: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = x.astype(np.float64)
    return wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + EPS) * weight


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_norm(isa: Isa, int8: bool) -> None:
    weight = np.random.default_rng(4).standard_normal(COLS).astype(f32)
    for x in rows_of_interest():
        for place in PLACES:
            memories = []
            for calls in (Calls(isa), Calls(Isa.PLAIN)):
                memories.append(tiles(COLS, int8))
                calls(calls.kernels.norm(EPS, int8), x, weight, COLS, memories[-1], place)
            assert same_bits(*memories)
            expected = normed(x, weight)
            if int8:
                quants, scales = int8_row(memories[0], COLS, place)
                error = np.abs(quants * scales[:, None] - expected.reshape(-1, GROUP))
                assert (error <= 0.501 * scales[:, None] + 1e-30).all()
            else:
                assert np.allclose(f32_row(memories[0], COLS, place), expected, rtol=1e-6, atol=LEAST)


@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_norm_twice_keeps_15_bits(isa: Isa) -> None:
    weight = np.random.default_rng(4).standard_normal(COLS).astype(f32)
    for x in rows_of_interest():
        memories = []
        for calls in (Calls(isa), Calls(Isa.PLAIN)):
            memories.append(tiles(COLS, int8=True))
            calls(calls.kernels.norm_twice(EPS), x, weight, COLS, memories[-1], 5, 37)
        assert same_bits(*memories)
        rows = (int8_row(memories[0], COLS, place) for place in (5, 37))
        value = sum(quants * scales[:, None] for quants, scales in rows)
        expected = normed(x, weight).reshape(-1, GROUP)
        bound = np.abs(expected).max(axis=1, keepdims=True) / (250 * 250)
        assert (np.abs(value - expected) <= np.maximum(bound, 100 * LEAST)).all()


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_quantise_is_exactly_the_formula(isa: Isa, int8: bool) -> None:
    x = rows_of_interest()
    calls, memory = Calls(isa), tiles(COLS, int8)
    for token, row in enumerate(x):
        calls(calls.kernels.quantise(int8), row, COLS, memory, token)
        if int8:
            quants, scales = int8_row(memory, COLS, token)
            wanted, wanted_scales = quantised(row.reshape(-1, GROUP))
            assert (quants == wanted).all()
            assert (scales == wanted_scales).all()
        else:
            assert same_bits(f32_row(memory, COLS, token), row)
    full = np.concatenate([x, x[:4]])  # a whole tile has no other bytes
    for token, row in enumerate(full):
        calls(calls.kernels.quantise(int8), row, COLS, memory, token)
    expected = (int8_rows if int8 else f32_rows)(full)[0]
    assert memory.ravel()[: expected.size].tobytes() == expected.tobytes()


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_gate(isa: Isa, int8: bool) -> None:
    tokens, group = 19, 1
    source = np.random.default_rng(5).standard_normal((tokens, 2 * GROUP + 8)).astype(f32)
    source[0, : GROUP // 2] = np.linspace(-120, 120, GROUP // 2)
    source[1, :8] = (0, -0.0, 88, -88, 87, -87, 1e5, -1e5)
    source[2, :GROUP] = -1e4  # a group of nothing: exp is held at e**88
    memories = []
    for calls in (Calls(isa), Calls(Isa.PLAIN)):
        memories.append(tiles(COLS, int8))
        kernel = calls.kernels.gate(int8)
        calls(kernel, source, source.strides[0], tokens, memories[-1], group, COLS // GROUP)
    assert same_bits(*memories)
    gates, ups = np.split(source[:, : 2 * GROUP].astype(np.float64), 2, axis=1)
    expected = gates * np.exp(-np.logaddexp(0, -gates)) * ups
    for token in range(tokens):
        if int8:
            quants, scales = int8_row_of_group(memories[0], token, group)
            assert (np.abs(quants * scales - expected[token]) <= 0.501 * scales + 1e-30).all()
        else:
            here = f32_row(memories[0], COLS, token)[group * GROUP : (group + 1) * GROUP]
            assert np.allclose(here, expected[token], rtol=1e-6, atol=1e-30)


def int8_row_of_group(memory: NDArray[np.uint8], token: int, group: int) -> tuple[NDArray[np.int64], float]:
    tile, lane = memory[token // TOKENS], token % TOKENS
    quants = tile[: TOKENS * COLS].view(np.int8).reshape(-1, TOKENS, GROUP)[group, lane].astype(np.int64)
    return quants, float(tile[TOKENS * COLS :].view(f32).reshape(3, -1, TOKENS)[0, group, lane])


class Rotation(NamedTuple):
    """What one call of rotate reads, and what it wrote."""

    rows: NDArray[np.float32]
    queries: NDArray[np.float32]
    block: NDArray[np.uint8]


SHAPES = [
    (HeadShape(9, 3, 64, "f16"), False, False),
    (HeadShape(4, 4, 80, "int8"), True, False),
    (HeadShape(6, 2, 80, "bf16"), False, False),
    (HeadShape(4, 1, 16, "bf16"), True, True),
    (HeadShape(8, 2, 128, "f32"), False, True),
    (HeadShape(7, 1, 40, "f16"), True, True),
    (HeadShape(16, 1, 8, "int8"), False, True),
    (HeadShape(8, 1, 20, "f32"), True, False),  # biases that no vector of 8 divides
]


def rotation(isa: Isa, shape: HeadShape, bias: bool, qk_norm: bool, slot: int) -> Rotation:
    """One token at position 5 of theta 10000, k and v into `slot`; the last KV head's values are zero."""
    random, dim = np.random.default_rng(6), shape.head_dim
    sizes = np.array([shape.num_heads, shape.num_kv_heads, shape.num_kv_heads]) * dim
    rows = random.standard_normal((3, max(sizes) + 16)).astype(f32)
    biases = random.standard_normal(sum(sizes)).astype(f32) * bias
    if not bias:
        rows[2, sizes[2] - dim : sizes[2]] = 0
    angle = 5 * 10000.0 ** (-np.arange(0, dim, 2) / dim)
    angles = np.concatenate([np.cos(angle), np.sin(angle)]).astype(f32)
    norms = random.uniform(0.5, 1.5, (2, dim)).astype(f32)
    queries = np.full((shape.num_kv_heads, 3, shape.group, dim), 9, f32)  # room for three tokens; this is the second
    block = random.integers(0, 256, shape.num_kv_heads * shape.head_bytes(BLOCK), np.uint8)
    calls = Calls(isa)
    calls(
        calls.kernels.rotate(shape, EPS, bias, qk_norm),
        *(rows[0], rows[1], rows[2], angles, queries[:, 1:], queries.strides[0], block, slot, biases, *norms),
    )
    return Rotation(rows, queries, block)


@pytest.mark.parametrize(("shape", "bias", "qk_norm"), SHAPES, ids=lambda v: v.name if isinstance(v, HeadShape) else "")
@pytest.mark.parametrize("isa", VECTOR_ISAS)
def test_rotate_equals_the_twin(isa: Isa, shape: HeadShape, bias: bool, qk_norm: bool) -> None:
    for slot in (0, 7, 15):
        ours, twin = (rotation(which, shape, bias, qk_norm, slot) for which in (isa, Isa.PLAIN))
        assert all(same_bits(a, b) for a, b in zip(ours, twin, strict=True))


@pytest.mark.parametrize(("shape", "bias", "qk_norm"), SHAPES, ids=lambda v: v.name if isinstance(v, HeadShape) else "")
def test_rotate_by_the_formula(shape: HeadShape, bias: bool, qk_norm: bool) -> None:
    slot, dim, kv_heads = 7, shape.head_dim, shape.num_kv_heads
    random = np.random.default_rng(6)  # the numbers that `rotation` draws, in its order
    sizes = np.array([shape.num_heads, kv_heads, kv_heads]) * dim
    rows = random.standard_normal((3, max(sizes) + 16)).astype(f32)
    biases = np.split(random.standard_normal(sum(sizes)).astype(f32) * bias, np.cumsum(sizes)[:2])
    if not bias:
        rows[2, sizes[2] - dim : sizes[2]] = 0
    norms = random.uniform(0.5, 1.5, (2, dim)).astype(f32)
    q, k, v = ((rows[i, : sizes[i]] + biases[i]).astype(np.float64).reshape(-1, dim) for i in range(3))
    if qk_norm:
        q, k = normed(q, norms[0]), normed(k, norms[1])
    angle = 5 * 10000.0 ** (-np.arange(0, dim, 2) / dim)
    turn = np.exp(1j * angle)

    def turned(x: NDArray[np.float64]) -> NDArray[np.float64]:
        z = (x[:, : dim // 2] + 1j * x[:, dim // 2 :]) * turn
        return np.concatenate([z.real, z.imag], axis=1)

    exact = replace(shape, kv_dtype="f32")
    written = rotation(Isa.PLAIN, exact, bias, qk_norm, slot)
    keys, values = stored(exact, written.block, slot)
    assert np.allclose(written.queries[:, 1].reshape(-1, dim), turned(q) / np.sqrt(dim), atol=2e-6)
    assert (written.queries[:, ::2] == 9).all()
    assert np.allclose(keys, turned(k), atol=5e-6)
    assert np.allclose(values, v, atol=5e-7)
    # The other dtypes store exactly these numbers, rounded as NumPy rounds.
    narrow_keys, narrow_values = stored(shape, rotation(Isa.PLAIN, shape, bias, qk_norm, slot).block, slot)
    for wide, narrow in ((keys, narrow_keys), (values, narrow_values)):
        if shape.kv_dtype == "int8":
            quants, scales = quantised(wide)
            assert same_bits(narrow, quants.astype(f32) * scales[:, None])
        elif shape.kv_dtype == "bf16":
            assert same_bits(narrow, bf16_values(bf16_bits(wide)))
        else:
            assert same_bits(narrow, wide.astype({"f16": np.float16, "f32": f32}[shape.kv_dtype]).astype(f32))


def stored(shape: HeadShape, block: NDArray[np.uint8], slot: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Keys and values [kv_heads, head_dim] of one slot of a block."""
    dtype = {"f16": np.float16, "bf16": np.uint16, "f32": f32, "int8": np.int8}[shape.kv_dtype]
    heads = block.reshape(shape.num_kv_heads, -1)
    value_at, scale_at = shape.value_offset(BLOCK), shape.scale_offset(BLOCK)
    if shape.kv_dtype == "bf16":
        pairs = heads[:, :value_at].view(dtype).reshape(len(heads), -1, BLOCK, 2)[:, :, slot]
        rows = heads[:, value_at:scale_at].view(dtype).reshape(len(heads), -1, shape.head_dim, 2)[:, slot // 2]
        return bf16_values(pairs.reshape(len(heads), -1)), bf16_values(rows[..., slot % 2])
    keys = heads[:, :value_at].view(dtype).reshape(-1, shape.head_dim, BLOCK)[:, :, slot].astype(f32)
    values = heads[:, value_at:scale_at].view(dtype).reshape(-1, BLOCK, shape.head_dim)[:, slot].astype(f32)
    if shape.kv_dtype == "int8":
        scales = heads[:, scale_at : scale_at + 8 * BLOCK].view(f32).reshape(-1, 2, BLOCK)[:, :, slot]
        keys, values = keys * scales[:, :1], values * scales[:, 1:]
    return keys, values


def test_every_half_has_its_value() -> None:
    for bits in range(1 << 16):
        expected = np.uint16(bits).view(np.float16)
        value = plain_numbers.half_to_float(bits)
        assert value == expected or (np.isnan(value) and np.isnan(expected))
        assert np.signbit(value) == np.signbit(expected) or np.isnan(value)


def test_rounding_to_half_where_it_is_decided() -> None:
    # Every half, every tie between two, and the floats right beside each tie.
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(f32)
    ties = (halves[:-1] + halves[1:]) / 2
    beside = [np.nextafter(ties, f32(side)) for side in (0, np.inf)]
    extremes = np.array([65519.996, 65520, 1e38, np.inf, 1e-45, 2.0**-25, 2.0**-25 * 1.0001], f32)
    for value in np.concatenate([halves, ties, *beside, extremes]):
        with np.errstate(over="ignore"):
            expected = np.array([value, -value]).astype(np.float16).view(np.uint16).tolist()
        assert [plain_numbers.float_to_half(value), plain_numbers.float_to_half(-value)] == expected, value


@given(st.floats(-87, 88, width=32))
def test_exp_is_right_to_two_units(x: float) -> None:
    exact = np.exp(np.float64(x))
    assert abs(float(plain_numbers.exp(f32(x))) - exact) <= 2 * 2.0**-23 * exact


@given(st.floats(-41, 0, width=32))
def test_short_exp_is_right_to_seventeen_bits(x: float) -> None:
    exact = np.exp(np.float64(x))
    assert abs(float(plain_numbers.exp_short(f32(x))) - exact) <= 2.0**-17 * exact


def test_short_exp_has_ends() -> None:
    assert plain_numbers.exp_short(f32(-41.01)) == 0
    assert plain_numbers.exp_short(f32(-1e30)) == 0
    assert plain_numbers.exp_short(f32(0)) == 1


def test_rounding_to_bf16_where_it_is_decided() -> None:
    # Every positive bf16, every tie between two, and the floats right beside each tie.
    numbers = bf16_values(np.arange(0x7F80, dtype=np.uint16))
    ties = numbers[:-1] + (numbers[1:] - numbers[:-1]) / 2
    above = np.nextafter(ties, f32(np.inf))
    for bits, (number, tie, over) in enumerate(zip(numbers[:-1], ties, above, strict=True)):
        for sign, minus in ((1, 0), (-1, 0x8000)):
            assert plain_numbers.float_to_bf16(f32(sign) * number) == bits | minus
            assert plain_numbers.float_to_bf16(f32(sign) * tie) == bits + (bits & 1) | minus
            assert plain_numbers.float_to_bf16(f32(sign) * over) == bits + 1 | minus


def test_exp_has_ends() -> None:
    assert plain_numbers.exp(f32(-87.01)) == 0
    assert plain_numbers.exp(f32(-np.inf)) == 0
    assert np.isfinite(plain_numbers.exp(f32(1e9)))
    assert plain_numbers.exp(f32(0)) == 1
