"""Linear kernels and embedding: bit for bit the plain twin on every instruction set, and close to float64."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from kvledger.model.formats import Format, Tensor, dequantise
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.panels import FORMATS, GROUP, ROWS, Panels, pack
from tests.model.kernel_calls import ISAS, Calls, f32, f32_rows, int8_rows, same_bits
from tests.model.tiny import quantise

UNIT = 2.0**-24
TOKENS = 37  # two tiles of 16 and a bit more: every count up to here meets every tile size and its rest
MAT_ROWS = 40  # two panels and a half

COMMON = (Format.Q4_0, Format.Q4_1, Format.Q8_0, Format.Q6_K)
FLOATS = (Format.F32, Format.F16, Format.BF16)


def cases(formats: tuple[Format, ...], *marks: pytest.MarkDecorator) -> list:
    """Widths: an odd number of groups, or the 8 groups of a K block."""
    return [
        pytest.param(format_, 256 if format_.block_size == 256 else 96, id=format_.name, marks=marks)
        for format_ in formats
    ]


RARE = tuple(format_ for format_ in FORMATS if format_ not in (*COMMON, *FLOATS))
QUANTISED = [*cases(COMMON), *cases(RARE, pytest.mark.slow)]
EVERY = [*QUANTISED, *cases(FLOATS)]


@cache
def matrix(format_: Format, cols: int) -> tuple[Panels, NDArray[np.float64]]:
    """A packed matrix and its values [MAT_ROWS, cols]; the first group of row 1 is zero, Q8_0 has quants of -128."""
    array = np.random.default_rng(cols).standard_normal((MAT_ROWS, cols)).astype(f32)
    array[1, :GROUP] = 0
    raw = np.ascontiguousarray(quantise(array, format_.name)).view(np.uint8).reshape(MAT_ROWS, -1)
    if format_ is Format.Q8_0:  # llama.cpp never writes them, other programs do
        raw[2, 2:34] = 0x80
        raw[3, 2:34:5] = 0x80
        raw[0, -32:] = 0x80
    tensor = Tensor("test", format_, MAT_ROWS, cols, raw)
    return pack(tensor), dequantise(tensor).astype(np.float64)


def activations(cols: int) -> NDArray[np.float32]:
    """Rows [TOKENS, cols] with a zero group, a zero row, and rows whose quants are all 127 or -127."""
    x = np.random.default_rng(1).standard_normal((TOKENS, cols)).astype(f32)
    x[3, :GROUP] = 0
    x[4] = 0
    x[5] = 1.5
    x[6] = -0.25
    return x


def product(
    isa: Isa, format_: Format, cols: int, int8: bool, tokens: int, out: NDArray[np.float32], add: bool = False
) -> NDArray[np.float32]:
    """`out` after all panels were multiplied with the first `tokens` activation rows."""
    panels, out = matrix(format_, cols)[0], out.copy()
    rows, _ = (int8_rows if int8 else f32_rows)(activations(cols))
    calls = Calls(isa)
    kernel = calls.kernels.linear(panels.format, int8, add)
    for i, panel in enumerate(panels.data):
        calls(kernel, panel, rows, panels.groups, tokens, out[:, i * ROWS :], out.strides[0])
    return out


def background() -> NDArray[np.float32]:
    """What `out` holds before: its last columns and rows must stay."""
    return np.random.default_rng(2).standard_normal((TOKENS + 1, 3 * ROWS + 2)).astype(f32)


@cache
def plain_product(format_: Format, cols: int, int8: bool) -> NDArray[np.float32]:
    return product(Isa.PLAIN, format_, cols, int8, TOKENS, background())


def check_every_count(isa: Isa, format_: Format, cols: int, int8: bool) -> None:
    whole = plain_product(format_, cols, int8)
    for tokens in range(1, TOKENS + 1):
        expected = background()
        expected[:tokens] = whole[:tokens]
        assert same_bits(product(isa, format_, cols, int8, tokens, background()), expected), tokens


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format_", "cols"), QUANTISED)
def test_int8_products_equal_the_twin(isa: Isa, format_: Format, cols: int) -> None:
    check_every_count(isa, format_, cols, int8=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format_", "cols"), EVERY)
def test_float_products_equal_the_twin(isa: Isa, format_: Format, cols: int) -> None:
    check_every_count(isa, format_, cols, int8=False)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format_", [Format.Q4_1, Format.Q8_0], ids=lambda f: f.name)
@pytest.mark.parametrize("groups", [1, 2, 17, 18])
def test_any_number_of_groups(isa: Isa, format_: Format, groups: int) -> None:
    # The tile unit runs a group ahead, and must do so only as far as there are groups.
    for tokens in (1, 16, TOKENS):
        expected = background()
        expected[:tokens] = plain_product(format_, groups * GROUP, True)[:tokens]
        assert same_bits(product(isa, format_, groups * GROUP, True, tokens, background()), expected)


@pytest.mark.parametrize("int8", [True, False], ids=["int8", "f32"])
@pytest.mark.parametrize(("format_", "cols"), EVERY)
def test_products_are_close_to_float64(format_: Format, cols: int, int8: bool) -> None:
    if int8 and format_ in FLOATS:
        return  # no such kernel
    out = plain_product(format_, cols, int8)
    weights = matrix(format_, cols)[1]
    x = (int8_rows if int8 else f32_rows)(activations(cols))[1]
    # One rounding per fused multiply-add, relative to the sum of magnitudes; a minimum adds magnitudes that cancel.
    roundings = 4 * cols // GROUP if int8 else cols
    bound = roundings * UNIT * 4 * np.abs(x).sum(axis=1)[:, None] * np.abs(weights).max(axis=1)
    assert (np.abs(out[:TOKENS, :MAT_ROWS] - x @ weights.T) <= bound).all()
    assert not out[:TOKENS, MAT_ROWS : 3 * ROWS].any()  # the rows that fill up the last panel are zero
    assert same_bits(out[:, 3 * ROWS :], background()[:, 3 * ROWS :])
    assert same_bits(out[TOKENS:], background()[TOKENS:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format_", "int8"), [(Format.Q4_1, True), (Format.F16, False)], ids=["int8", "f32"])
def test_adding_a_product(isa: Isa, format_: Format, int8: bool) -> None:
    before, whole = background(), plain_product(format_, 96, int8)
    for tokens in (1, 2, 15, 16, 33, TOKENS):
        expected = before.copy()
        expected[:tokens, : 3 * ROWS] += whole[:tokens, : 3 * ROWS]
        assert same_bits(product(isa, format_, 96, int8, tokens, before, add=True), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("format_", "cols"), EVERY)
def test_embedding_equals_dequantise(isa: Isa, format_: Format, cols: int) -> None:
    # Equal for every format, although kernels fuse `quant * scale + minimum`: a scale has 11 to 18 significant bits and
    # a quant at most 6, so the product is exact in the 24 bits of a float32 and only the sum is rounded either way.
    panels, values = matrix(format_, cols)
    calls, out = Calls(isa), np.full(cols + 1, 7, f32)
    kernel = calls.kernels.embed(panels.format)
    for row in range(MAT_ROWS):
        calls(kernel, panels.data, panels.data.shape[1], row, panels.groups, out)
        assert out[:cols].tolist() == values[row].tolist()
        assert out[cols] == 7
