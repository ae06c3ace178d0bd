"""GGUF files: header, metadata and tensors, mapped into memory rather than read.

The layout is that of the GGUF specification (`docs/gguf.md` in ggml), versions 2 and 3, little-endian. The reader is
our own because `gguf.GGUFReader` builds several Python objects per vocabulary entry, which takes seconds for a
vocabulary of 50,000; this one walks the same header in tens of milliseconds and says what is wrong with a bad file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import ModelFileError
from kvledger.model.formats import Format, Tensor
from kvledger.model.mapped import map_file

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_FORMATS = {format.ggml_type: format for format in Format}
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An opened GGUF file. `metadata` holds plain Python values; tensor bytes are views of the mapped file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_gguf(path: Path) -> GGUFFile:
    """Open the GGUF file at `path`; raises `ModelFileError` if it is not one, is cut short or cannot be understood."""
    header = _Header(path, map_file(path))
    header.open()
    num_tensors, num_entries = header.scalar("<Q"), header.scalar("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_entries):
        key = header.string()
        if key in metadata:
            raise ModelFileError(f"{path} is damaged: the metadata key {key!r} occurs twice.")
        metadata[key] = header.value(header.scalar("<I"))
    infos = [header.tensor_info() for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(f"{path} is damaged: general.alignment is {alignment!r}, which is not a power of two.")
    start = -(-header.position // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for info in infos:
        if info.name in tensors:
            raise ModelFileError(f"{path} is damaged: the tensor {info.name} occurs twice.")
        tensors[info.name] = _tensor(path, header.data, start, info)
    return GGUFFile(path, metadata, tensors)


@dataclass(frozen=True)
class _TensorInfo:
    name: str
    shape: tuple[int, ...]  # fastest-running dimension first
    ggml_type: int
    offset: int  # from the start of the data section


class _Header:
    """A position in the mapped file that only moves forward and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def open(self) -> None:
        if self.data[:4] != _MAGIC:
            raise ModelFileError(f"{self.path} is not a GGUF file: it does not begin with the letters GGUF.")
        self.position = 4
        version = self.scalar("<I")
        if version not in _VERSIONS:
            kind = "big-endian, which is not supported" if version & 0xFFFF == 0 else f"version {version}"
            raise ModelFileError(
                f"{self.path} is a GGUF file of a kind that cannot be read ({kind}): convert it to version 3."
            )

    def take(self, size: int) -> int:
        """Step over `size` bytes; return where they begin."""
        begin = self.position
        if size > len(self.data) - begin:
            raise ModelFileError(
                f"{self.path} is truncated: its header goes on after the end of the file ({len(self.data)} bytes)."
                " Fetch the file again."
            )
        self.position = begin + size
        return begin

    def scalar(self, code: str) -> Any:
        return struct.unpack_from(code, self.data, self.take(struct.calcsize(code)))[0]

    def string(self) -> str:
        (size,) = _U64.unpack_from(self.data, self.take(8))
        begin = self.take(size)
        try:
            return self.data[begin : begin + size].decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{self.path} is damaged: a string at byte {begin} is not UTF-8.") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item, count = self.scalar("<I"), self.scalar("<Q")
            if item == _STRING:
                return [self.string() for _ in range(count)]
            if item in _SCALARS:
                dtype = np.dtype(_SCALARS[item])
                return np.frombuffer(self.data, dtype, count, self.take(count * dtype.itemsize)).tolist()
        elif kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        raise ModelFileError(f"{self.path} is damaged: a metadata value before byte {self.position} has no known type.")

    def tensor_info(self) -> _TensorInfo:
        name = self.string()
        num_dims = self.scalar("<I")
        if not 1 <= num_dims <= 4:
            raise ModelFileError(f"{self.path} is damaged: the tensor {name} has {num_dims} dimensions.")
        shape = tuple(self.scalar("<Q") for _ in range(num_dims))
        return _TensorInfo(name, shape, self.scalar("<I"), self.scalar("<Q"))


def _tensor(path: Path, data: mmap.mmap, start: int, info: _TensorInfo) -> Tensor:
    format = _FORMATS.get(info.ggml_type)
    if format is None:
        raise ModelFileError(
            f"{path}: the tensor {info.name} is stored as {_type_name(info.ggml_type)}, which is not supported"
            f" (supported: {', '.join(f.name for f in Format)})."
        )
    cols = info.shape[0]
    rows = 1
    for size in info.shape[1:]:
        rows *= size
    if rows == 0 or cols == 0 or cols % format.block_size:
        raise ModelFileError(
            f"{path} is damaged: the tensor {info.name} of shape {list(info.shape)} does not divide into"
            f" {format.name} blocks of {format.block_size}."
        )
    begin, row_bytes = start + info.offset, format.row_bytes(cols)
    if begin + rows * row_bytes > len(data):
        raise ModelFileError(
            f"{path} is truncated: the tensor {info.name} ends at byte {begin + rows * row_bytes} and the file has"
            f" {len(data)}. Fetch the file again."
        )
    blocks: NDArray[np.uint8] = np.frombuffer(data, np.uint8, rows * row_bytes, begin).reshape(rows, row_bytes)
    return Tensor(info.name, format, rows, cols, blocks)


def _type_name(ggml_type: int) -> str:
    from gguf import GGMLQuantizationType  # noqa: PLC0415

    try:
        return GGMLQuantizationType(ggml_type).name
    except ValueError:
        return f"the unknown GGML type {ggml_type}"
