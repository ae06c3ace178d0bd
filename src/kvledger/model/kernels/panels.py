"""Weights as the kernels read them: panels of 16 rows, groups of 32 columns, one contiguous run of bytes each.

The 16 lanes of a vector are 16 rows of the matrix, so no kernel ever sums across lanes. A panel holds, in this order
and each part for all groups of the panel before the next:

- quants. 4-bit: per group 4 x 64 bytes; byte `4 * row + i` of vector j holds columns `4j + i` (low nibble) and
  `16 + 4j + i` (high nibble), unsigned. 8-bit: per group 8 x 64 bytes; byte `4 * row + i` of vector j holds column
  `4j + i`, signed, the format's zero point already taken off. Floating point: per column 16 numbers, one a row.
- scales, 16 per group or per half group, and
- minima, 16 per group, in the scale's type.

A weight is `(quant - zero) * scale`, or `quant * scale + minimum`; only 4-bit quants have a zero point left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.model.formats import Format, Tensor

ROWS = 16
GROUP = 32


@dataclass(frozen=True)
class PanelFormat:
    """How one panel is laid out. `bits` is 4 or 8 for integers, 16 or 32 for floating point."""

    name: str
    bits: int
    zero: int = 0
    scale_bytes: int = 0
    scales_per_group: int = 1
    has_minimum: bool = False

    @property
    def is_quantised(self) -> bool:
        return self.bits <= 8

    def quant_bytes(self, groups: int) -> int:
        """Bytes of all quants of a panel."""
        return groups * ROWS * GROUP * self.bits // 8

    def scales_bytes(self, groups: int) -> int:
        """Bytes of all scales of a panel."""
        return groups * ROWS * self.scales_per_group * self.scale_bytes

    def panel_bytes(self, groups: int) -> int:
        """Bytes from one panel to the next, a multiple of 64."""
        minima = groups * ROWS * self.scale_bytes if self.has_minimum else 0
        return (self.quant_bytes(groups) + self.scales_bytes(groups) + minima + 63) // 64 * 64


FORMATS: dict[Format, PanelFormat] = {
    Format.F32: PanelFormat("f32", 32),
    Format.F16: PanelFormat("f16", 16),
    Format.BF16: PanelFormat("bf16", 16),
    Format.Q4_0: PanelFormat("q4_0", 4, zero=8, scale_bytes=2),
    Format.Q4_1: PanelFormat("q4_1", 4, scale_bytes=2, has_minimum=True),
    Format.Q8_0: PanelFormat("q8_0", 8, scale_bytes=2),
    Format.Q5_0: PanelFormat("q5_0", 8, scale_bytes=2),
    Format.Q5_1: PanelFormat("q5_1", 8, scale_bytes=2, has_minimum=True),
    Format.Q4_K: PanelFormat("q4_k", 4, scale_bytes=4, has_minimum=True),
    Format.Q5_K: PanelFormat("q5_k", 8, scale_bytes=4, has_minimum=True),
    Format.Q6_K: PanelFormat("q6_k", 8, scale_bytes=4, scales_per_group=2),
}


@dataclass(frozen=True)
class Panels:
    """A packed matrix. `data` is uint8 [panels, panel_bytes], 64-byte aligned; `rows` counts no padding."""

    format: PanelFormat
    rows: int
    cols: int
    data: NDArray[np.uint8]

    @property
    def num_panels(self) -> int:
        return len(self.data)

    @property
    def groups(self) -> int:
        return self.cols // GROUP


def aligned(shape: tuple[int, ...], dtype: type) -> NDArray[Any]:
    """An array of zeros that begins on a 64-byte boundary."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def pack(tensor: Tensor) -> Panels:
    """Pack a matrix into panels. Its width must be a multiple of 32; missing rows of the last panel are zero."""
    format_ = FORMATS[tensor.format]
    num_panels, groups = -(-tensor.rows // ROWS), tensor.cols // GROUP
    data = aligned((num_panels, format_.panel_bytes(groups)), np.uint8)
    raw = tensor.data
    if tensor.rows % ROWS:
        raw = np.concatenate([raw, np.zeros((num_panels * ROWS - tensor.rows, raw.shape[1]), np.uint8)])
    if not format_.is_quantised:
        width = np.dtype(f"u{format_.bits // 8}")
        columns = raw.view(width).reshape(num_panels, ROWS, tensor.cols)
        used = tensor.cols * ROWS * width.itemsize
        data[:, :used].view(width).reshape(num_panels, tensor.cols, ROWS)[...] = columns.transpose(0, 2, 1)
        return Panels(format_, tensor.rows, tensor.cols, data)
    quads, scales, minima = _UNPACK[tensor.format](raw, groups)
    at = 0
    for part in (quads, scales, minima):
        if part is None:
            continue
        # Rows of a panel become the fastest axis; what belongs to one group stays together.
        per_row = part.reshape(num_panels, ROWS, groups, -1)
        size = per_row.nbytes // num_panels
        target = data[:, at : at + size].view(part.dtype).reshape(num_panels, groups, per_row.shape[3], ROWS)
        target[...] = per_row.transpose(0, 2, 3, 1)
        at += size
    return Panels(format_, tensor.rows, tensor.cols, data)


# Each of the functions below takes raw blocks [rows, bytes] and returns quads of quants uint32 [rows, groups * quads],
# scales [rows, groups * scales_per_group] and minima [rows, groups] or None. Layouts: ggml-common.h and the functions
# dequantize_row of llama.cpp.

_Parts = tuple[NDArray[np.uint32], NDArray[Any], NDArray[Any] | None]


def _half(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]


def _quads(quants: NDArray[Any], rows: int) -> NDArray[np.uint32]:
    return np.ascontiguousarray(quants).view(np.uint32).reshape(rows, -1)


def _nibbles(quants: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[..., n] bytes -> [..., 2n] values: all low nibbles, then all high ones."""
    return np.concatenate([quants & 15, quants >> 4], axis=-1)


def _bits32(blocks: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """[..., 32] single bits of four bytes, the lowest first."""
    return np.unpackbits(blocks[..., offset : offset + 4], axis=-1, bitorder="little")


def _q4_0(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups, 18)
    return _quads(blocks[..., 2:], len(raw)), _half(blocks, 0), None


def _q4_1(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups, 20)
    return _quads(blocks[..., 4:], len(raw)), _half(blocks, 0), _half(blocks, 2)


def _q5_0(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups, 22)
    quants = (_nibbles(blocks[..., 6:]) | _bits32(blocks, 2) << 4) - np.uint8(16)
    return _quads(quants, len(raw)), _half(blocks, 0), None


def _q5_1(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups, 24)
    quants = _nibbles(blocks[..., 8:]) | _bits32(blocks, 4) << 4
    return _quads(quants, len(raw)), _half(blocks, 0), _half(blocks, 2)


def _q8_0(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups, 34)
    return _quads(blocks[..., 2:], len(raw)), _half(blocks, 0), None


def _six_bit_scales(blocks: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and minima of the eight groups of K-quant blocks that begin with d, dmin and 12 packed bytes."""
    packed = blocks[..., 4:16]
    low, mid, high = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=-1)
    minima = np.concatenate([mid & 63, high >> 4 | mid >> 6 << 4], axis=-1)
    d, dmin = (_half(blocks, offset).astype(np.float32)[..., None] for offset in (0, 2))
    return d * scales, -(dmin * minima)


def _q4_k(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups // 8, 144)
    # 32 bytes serve two groups, low nibbles the first; panels want both halves of one group in one byte.
    quants = _nibbles(blocks[..., 16:].reshape(len(raw), -1, 32)).reshape(len(raw), groups, 32)
    scales, minima = _six_bit_scales(blocks)
    return _quads(quants[..., :16] | quants[..., 16:] << 4, len(raw)), scales, minima


def _q5_k(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups // 8, 176)
    quants = _nibbles(blocks[..., 48:].reshape(len(raw), groups // 8, 4, 32)).reshape(len(raw), groups // 8, 8, 32)
    fifth = blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    scales, minima = _six_bit_scales(blocks)
    return _quads(quants | fifth << 4, len(raw)), scales, minima


def _q6_k(raw: NDArray[np.uint8], groups: int) -> _Parts:
    blocks = raw.reshape(len(raw), groups // 8, 210)
    low = blocks[..., :128].reshape(len(raw), groups // 8, 2, 64)
    high = blocks[..., 128:192].reshape(len(raw), groups // 8, 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    quants = _nibbles(low).reshape(*low.shape[:3], 4, 32) | (high >> shifts & 3) << 4
    quants -= 32
    scales = blocks[..., 192:208].view(np.int8) * _half(blocks, 208).astype(np.float32)[..., None]
    return _quads(quants, len(raw)), scales, None


_UNPACK: dict[Format, Callable[[NDArray[np.uint8], int], _Parts]] = {
    Format.Q4_0: _q4_0,
    Format.Q4_1: _q4_1,
    Format.Q5_0: _q5_0,
    Format.Q5_1: _q5_1,
    Format.Q8_0: _q8_0,
    Format.Q4_K: _q4_k,
    Format.Q5_K: _q5_k,
    Format.Q6_K: _q6_k,
}
