"""Storage formats: the table against the library's, and dequantisation against loops written from the block layouts."""

import struct
from collections.abc import Callable

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from kvledger.model.formats import Format, Tensor, dequantise
from tests.model.tiny import quantise

f32 = np.float32


def half(block: bytes, at: int) -> f32:
    return f32(struct.unpack_from("<e", block, at)[0])


def q4_0(block: bytes) -> list[f32]:
    scale = half(block, 0)
    codes = [byte & 15 for byte in block[2:]] + [byte >> 4 for byte in block[2:]]
    return [scale * f32(code - 8) for code in codes]


def q4_1(block: bytes) -> list[f32]:
    scale, minimum = half(block, 0), half(block, 2)
    codes = [byte & 15 for byte in block[4:]] + [byte >> 4 for byte in block[4:]]
    return [scale * f32(code) + minimum for code in codes]


def q5_0(block: bytes) -> list[f32]:
    scale, high = half(block, 0), int.from_bytes(block[2:6], "little")
    codes = [byte & 15 for byte in block[6:]] + [byte >> 4 for byte in block[6:]]
    return [scale * f32(code + 16 * (high >> i & 1) - 16) for i, code in enumerate(codes)]


def q5_1(block: bytes) -> list[f32]:
    scale, minimum, high = half(block, 0), half(block, 2), int.from_bytes(block[4:8], "little")
    codes = [byte & 15 for byte in block[8:]] + [byte >> 4 for byte in block[8:]]
    return [scale * f32(code + 16 * (high >> i & 1)) + minimum for i, code in enumerate(codes)]


def q8_0(block: bytes) -> list[f32]:
    return [half(block, 0) * f32(code) for code in struct.unpack_from("<32b", block, 2)]


def k_scales(packed: bytes) -> list[tuple[int, int]]:
    """Scale and minimum of each of the eight groups, six bits each, from the twelve bytes of Q4_K and Q5_K."""
    pairs = []
    for group in range(8):
        if group < 4:
            pairs.append((packed[group] & 63, packed[group + 4] & 63))
        else:
            low, high = packed[group + 4], (packed[group - 4] >> 6, packed[group] >> 6)
            pairs.append((low & 15 | high[0] << 4, low >> 4 | high[1] << 4))
    return pairs


def q4_k(block: bytes) -> list[f32]:
    values = []
    for group, (scale, minimum) in enumerate(k_scales(block[4:16])):
        for i in range(32):
            code = block[16 + group // 2 * 32 + i] >> 4 * (group % 2) & 15
            values.append(half(block, 0) * f32(scale) * f32(code) - half(block, 2) * f32(minimum))
    return values


def q5_k(block: bytes) -> list[f32]:
    values = []
    for group, (scale, minimum) in enumerate(k_scales(block[4:16])):
        for i in range(32):
            code = (block[48 + group // 2 * 32 + i] >> 4 * (group % 2) & 15) + 16 * (block[16 + i] >> group & 1)
            values.append(half(block, 0) * f32(scale) * f32(code) - half(block, 2) * f32(minimum))
    return values


def q6_k(block: bytes) -> list[f32]:
    values = []
    for i in range(256):
        half_block, quarter, column = i // 128, i // 32 % 4, i % 32
        low = block[half_block * 64 + quarter % 2 * 32 + column] >> 4 * (quarter // 2) & 15
        high = block[128 + half_block * 32 + column] >> 2 * quarter & 3
        (scale,) = struct.unpack_from("<b", block, 192 + i // 16)
        values.append(half(block, 208) * f32(scale) * f32((low | high << 4) - 32))
    return values


LOOPS: dict[Format, Callable[[bytes], list[f32]]] = {
    Format.F32: lambda block: [f32(struct.unpack("<f", block)[0])],
    Format.F16: lambda block: [half(block, 0)],
    Format.BF16: lambda block: [f32(struct.unpack("<f", b"\0\0" + block)[0])],
    Format.Q4_0: q4_0,
    Format.Q4_1: q4_1,
    Format.Q5_0: q5_0,
    Format.Q5_1: q5_1,
    Format.Q8_0: q8_0,
    Format.Q4_K: q4_k,
    Format.Q5_K: q5_k,
    Format.Q6_K: q6_k,
}


@pytest.mark.parametrize("format", list(Format), ids=lambda format: format.name)
def test_block_sizes_are_the_librarys(format: Format) -> None:
    kind = GGMLQuantizationType[format.name]
    assert (format.ggml_type, format.block_size, format.block_bytes) == (kind.value, *GGML_QUANT_SIZES[kind])


@pytest.mark.parametrize("format", list(Format), ids=lambda format: format.name)
def test_dequantise_equals_the_layout_bit_for_bit(format: Format) -> None:
    rows, cols = 5, 512
    array = np.random.default_rng(7).standard_normal((rows, cols)).astype(np.float32)
    data: NDArray[np.uint8] = np.ascontiguousarray(quantise(array, format.name)).view(np.uint8)
    expected = [
        value
        for at in range(0, data.size, format.block_bytes)
        for value in LOOPS[format](data.tobytes()[at : at + format.block_bytes])
    ]
    values = dequantise(Tensor("x", format, rows, cols, data))
    assert values.dtype == np.float32
    assert values.shape == (rows, cols)
    assert np.array_equal(values.ravel().view(np.uint32), np.array(expected, np.float32).view(np.uint32))


def test_dequantise_reads_unaligned_floats() -> None:
    raw = np.zeros(9, np.uint8)
    raw[1:] = np.array([1.5, -2.25], np.float32).view(np.uint8)
    assert dequantise(Tensor("x", Format.F32, 1, 2, raw[1:].reshape(1, 8))).tolist() == [[1.5, -2.25]]


def test_row_bytes() -> None:
    assert Format.Q4_1.row_bytes(576) == 360
    assert Format.Q6_K.row_bytes(512) == 420
    assert Format.BF16.row_bytes(3) == 6
