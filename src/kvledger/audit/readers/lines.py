"""Files of any size as JSON items: plain or compressed, lines or one document, with what is broken named by line."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from kvledger.errors import AuditError

MAX_LINE = 64 << 20
"""Bytes of the longest line that is read: more than any provider's largest request (32 MB) needs."""

MAX_DOCUMENT = 256 << 20
"""Bytes of the largest file that is one JSON document over many lines; larger ones must be JSON Lines."""

SQLITE = b"SQLite format 3\0"

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_PROBED = 4096
_NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class Item:
    """One JSON value of a file, at its line (or, in a document, as its n-th item)."""

    line: int
    value: Any


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that is no JSON, and why; 0 stands for the file as a whole."""

    line: int
    reason: str


def items(path: Path, progress: Callable[[int], None] | None = None) -> Iterator[Item | Broken]:
    """All JSON values of a file, first to last. `progress` is told of bytes as they are read from the disk.

    Holds one line (`MAX_LINE`) or one document (`MAX_DOCUMENT`) at a time. Raises `AuditError` where a package is
    missing that unpacks the file, `OSError` where it cannot be opened.
    """
    with ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        told = io.BufferedReader(cast(Any, _Told(raw, progress)), _CHUNK) if progress else raw
        start = raw.peek(16)[:16] if isinstance(raw, io.BufferedReader) else b""
        file = _unpacked(start, told)
        number = 0
        try:
            for item in _items(file):
                number = item.line
                yield item
        except _damage(start) as error:
            reason = f"the compressed data breaks off or is damaged ({error}): only what came before is read"
            yield Broken(number + 1, reason)


def _items(file: io.BufferedReader) -> Iterator[Item | Broken]:
    held: list[bytes] = []  # the lines of a document so far, as long as they may be one
    size = 0
    if b"\0" in file.peek(_PROBED)[:_PROBED]:
        yield Broken(0, "binary data, not JSON")
        return
    for number, line in _lines(file):
        if line is None:
            yield Broken(number, f"longer than {MAX_LINE >> 20} MB: no request is that long")
            continue
        stripped = line.strip()
        if held:
            held.append(line)
            size += len(line)
            if size > MAX_DOCUMENT:
                yield Broken(0, f"one JSON document of more than {MAX_DOCUMENT >> 20} MB: write it as JSON Lines")
                return
            continue
        if stripped in (b"", b"]", b"],") or (number == 1 and stripped == b"["):
            continue
        bare = stripped.removesuffix(b",")
        if number == 1 and bare.startswith(b"[{") and not bare.endswith(b"]"):
            bare = bare[1:]  # an array with an item on each line
        try:
            value = _decode(bare)
        except _NO_JSON as error:
            if number <= 2 and stripped.endswith((b"{", b"[")):
                held, size = [line], len(line)
                continue
            yield Broken(number, f"no JSON ({error})")
            continue
        yield from _spread(number, value)
    if held:
        yield from _document(held)


def _document(held: list[bytes]) -> Iterator[Item | Broken]:
    """The lines of what may be one document, or else lines that begin with a broken one."""
    whole = b"".join(held).strip()
    for text in (whole, b"[" + whole):  # a bracket that stood alone on the first line was passed over
        try:
            yield from _spread(1, _decode(text))
            return
        except _NO_JSON as error:
            reason = str(error)
    yield Broken(1, f"no JSON ({reason})")
    for number, line in enumerate(held[1:], 2):
        if not line.strip():
            continue
        try:
            yield from _spread(number, _decode(line.strip().removesuffix(b",")))
        except _NO_JSON as error:
            yield Broken(number, f"no JSON ({error})")


def _spread(number: int, value: Any) -> Iterator[Item | Broken]:
    """An array's items, counted from 1 where it is the whole file, or the value alone."""
    if isinstance(value, list):
        for index, item in enumerate(value, 1):
            yield Item(index if number == 1 else number, item)
    else:
        yield Item(number, value)


def _lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines; None for one above the limit, of which no more than that is ever held."""
    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if len(line) == MAX_LINE and not line.endswith(b"\n"):
            while (rest := file.readline(_CHUNK)) and not rest.endswith(b"\n"):
                pass
            yield number, None
        else:
            yield number, line


def _unpacked(start: bytes, file: Any) -> io.BufferedReader:
    if start.startswith(_GZIP):
        return cast(io.BufferedReader, gzip.GzipFile(fileobj=file))
    if start.startswith(_ZSTD):
        try:
            import zstandard  # noqa: PLC0415 (an extra)
        except ModuleNotFoundError as error:
            raise AuditError("A .zst log needs the package zstandard: pip install 'kvledger[audit]'.") from error
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return io.BufferedReader(cast(Any, reader), _CHUNK)
    return cast(io.BufferedReader, file)


def _damage(start: bytes) -> tuple[type[Exception], ...]:
    """What unpacking raises on damaged data."""
    if not start.startswith(_ZSTD):
        return (EOFError, zlib.error, gzip.BadGzipFile)
    import zstandard  # noqa: PLC0415 (an extra)

    return (zstandard.ZstdError,)


class _Told(io.RawIOBase):
    """A file that says how much of it is read."""

    def __init__(self, file: BinaryIO, progress: Callable[[int], None]) -> None:
        self._file, self._progress = file, progress

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._progress(len(data))
        return len(data)
