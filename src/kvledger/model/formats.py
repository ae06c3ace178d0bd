"""How numbers are stored in a tensor: the formats that can be read, and the way back to float32."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Format(Enum):
    """A storage format: (GGML type number, elements per block, bytes per block). A row is whole blocks, end to end.

    The layouts are those of `ggml-common.h` in llama.cpp; plain floats count as blocks of one element.
    """

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    BF16 = (30, 1, 2)

    def __init__(self, ggml_type: int, block_size: int, block_bytes: int) -> None:
        self.ggml_type = ggml_type
        self.block_size = block_size
        self.block_bytes = block_bytes

    def row_bytes(self, cols: int) -> int:
        """Bytes of one row of `cols` elements, which must be a multiple of the block size."""
        return cols // self.block_size * self.block_bytes


@dataclass(frozen=True, eq=False)
class Tensor:
    """A matrix of `rows` x `cols` elements as it lies in the file. A vector has one row.

    `data` is uint8 [rows, format.row_bytes(cols)], C-contiguous and read-only; it is a view of the mapped file wherever
    the rows keep the file's order.
    """

    name: str
    format: Format
    rows: int
    cols: int
    data: NDArray[np.uint8]


def dequantise(tensor: Tensor) -> NDArray[np.float32]:
    """Return the elements of `tensor` as float32 [rows, cols]; exact for F32, F16 and BF16."""
    from gguf import GGMLQuantizationType, quants  # noqa: PLC0415

    values = quants.dequantize(tensor.data, GGMLQuantizationType(tensor.format.ggml_type))
    return np.asarray(values, dtype=np.float32).reshape(tensor.rows, tensor.cols)
