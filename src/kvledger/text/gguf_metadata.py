"""The metadata of a GGUF file as plain Python values: what a tokenizer needs of it, without the tensors.

The layout is that of the GGUF specification (`docs/gguf.md` in ggml), versions 2 and 3, little-endian. The field API
of the `gguf` library builds several arrays per vocabulary entry and takes seconds for 50,000 of them; this walk takes
some 50 ms.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from kvledger.errors import ModelFileError

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_U64 = struct.Struct("<Q")


def read_metadata(path: Path) -> dict[str, Any]:
    """Read every key and value of the GGUF file at `path`.

    Raises `ModelFileError` if the file cannot be read, is not GGUF, is cut short or damaged.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(path, data).metadata()
    except ValueError:
        raise ModelFileError(f"{path} is empty: fetch the file again.") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error


class _Walk:
    """A position in the file that only moves forward and never past the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0

    def metadata(self) -> dict[str, Any]:
        if self._data[:4] != b"GGUF":
            raise ModelFileError(f"{self._path} is not a GGUF file: it does not begin with the letters GGUF.")
        self._position = 4
        version = self._scalar("I")
        if version not in _VERSIONS:
            raise ModelFileError(
                f"{self._path} is a GGUF file of version {version}, which cannot be read: convert it to version 3."
            )
        self._scalar("Q")  # number of tensors
        num_entries = self._scalar("Q")
        entries: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            entries[key] = self._value(self._scalar("I"))
        return entries

    def _take(self, size: int) -> int:
        begin = self._position
        if size > len(self._data) - begin:
            raise ModelFileError(f"{self._path} is truncated inside its header: fetch the file again.")
        self._position = begin + size
        return begin

    def _scalar(self, code: str) -> Any:
        return struct.unpack_from(f"<{code}", self._data, self._take(struct.calcsize(f"<{code}")))[0]

    def _string(self) -> str:
        (size,) = _U64.unpack_from(self._data, self._take(8))
        begin = self._take(size)
        try:
            return self._data[begin : begin + size].decode()
        except UnicodeDecodeError:
            raise ModelFileError(f"{self._path} is damaged: a string at byte {begin} is not UTF-8.") from None

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            item, count = self._scalar("I"), self._scalar("Q")
            if item == _STRING:
                return [self._string() for _ in range(count)]
            if item in _SCALARS:
                begin = self._take(count * struct.calcsize(f"<{_SCALARS[item]}"))
                return list(struct.unpack_from(f"<{count}{_SCALARS[item]}", self._data, begin))
        elif kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        raise ModelFileError(f"{self._path} is damaged: a value before byte {self._position} has no known type.")
