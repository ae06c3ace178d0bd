"""Trace files: which format one has, seen by its content, and its lines, broken ones included."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from kvledger.errors import TraceError
from kvledger.sim.builder import TraceBuilder
from kvledger.sim.formats.bailian import BailianReader
from kvledger.sim.formats.events import EventsReader
from kvledger.sim.formats.kv_cache_tester import KvCacheTesterReader
from kvledger.sim.formats.mooncake import MooncakeReader
from kvledger.sim.formats.ragpulse import RagPulseReader
from kvledger.sim.formats.reader import LineError, Reader, decoded
from kvledger.sim.formats.request_log import RequestLogReader, prompt_of
from kvledger.sim.trace import Skipped, Trace

_PROBED_LINES = 100
_PROBED_BYTES = 4096
_GZIP = b"\x1f\x8b"
_FORMATS = "Mooncake, Bailian, kv-cache-tester, RAGPulse, kvledger events, request logs with tokens or messages"


def read_trace(
    path: Path,
    *,
    block_size: int | None = None,
    time_unit: float | None = None,
    encode: Callable[[str], Sequence[int]] | None = None,
) -> Trace:
    """Read a file, or a folder of kv-cache-tester or RAGPulse files.

    `block_size` (tokens) and `time_unit` (seconds per unit) override what the format says; `encode` is the tokenizer
    for logs of text. Lines that cannot be read are left out and listed in the trace. Raises `TraceError` if the file is
    missing, binary, empty or of no known format, or if none of its lines can be read.
    """
    files = _files(path)
    reader: Reader | None = None
    builder = TraceBuilder()
    skipped: list[Skipped] = []
    unknown: list[Skipped] = []
    taken = 0
    for file in files:
        for number, line in _lines(file):
            try:
                if reader is None:
                    reader = _reader_for(decoded(line), file, block_size=block_size, time_unit=time_unit, encode=encode)
                for record in reader.records(line):
                    builder.add(record)
                taken += 1
            except LineError as error:
                why = f"{file.name}: {error}" if len(files) > 1 else str(error)
                (skipped if reader else unknown).append(Skipped(number, why))
                if reader is None and len(unknown) == _PROBED_LINES:
                    break
    problems = unknown + skipped
    if reader is None and problems:
        raise TraceError(
            f"{path} is of no known format (line {problems[0].line}: {problems[0].why}): known are {_FORMATS}."
        )
    if reader is None:
        raise TraceError(f"{path} is empty: give a trace with at least one request.")
    if not taken:
        raise TraceError(f"No line of {path} can be read (line {problems[0].line}: {problems[0].why}).")
    return builder.build(reader, problems, trusts_unit=time_unit is not None)


def _reader_for(
    first: dict[str, Any],
    path: Path,
    *,
    block_size: int | None,
    time_unit: float | None,
    encode: Callable[[str], Sequence[int]] | None,
) -> Reader:
    """The reader for the format of which `first` is a line."""
    if isinstance(first.get("requests"), list):
        return KvCacheTesterReader(first, block_size=block_size, time_unit=time_unit)
    if isinstance(first.get("hash_ids"), dict):
        return RagPulseReader(path.parent, block_size=block_size, time_unit=time_unit)
    if "hash_ids" in first and "parent_chat_id" in first:
        return BailianReader(block_size=block_size, time_unit=time_unit)
    if "hash_ids" in first and "input_length" in first:
        return MooncakeReader(first, block_size=block_size, time_unit=time_unit)
    if "event" in first and "number" in first:
        return EventsReader(block_size=block_size)
    if prompt_of(first) is not None:
        return RequestLogReader(block_size=block_size, time_unit=time_unit, encode=encode)
    shown = ", ".join(list(first)[:6]) or "no fields"
    raise LineError(f"an object with {shown}")


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise TraceError(f"There is no trace {path}: give the path of a file, or of a folder of kv-cache-tester files.")
    if not path.is_dir():
        return [path]
    ragpulse = path / "0_trace.jsonl"
    files = [ragpulse] if ragpulse.is_file() else sorted(path.glob("*.json"))
    if not files:
        raise TraceError(f"The folder {path} has neither 0_trace.jsonl (RAGPulse) nor *.json files (kv-cache-tester).")
    return files


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file that are not blank, with their numbers; a file that is one JSON document is one line."""
    with _opened(path) as file:
        if b"\0" in file.peek(_PROBED_BYTES)[:_PROBED_BYTES]:
            raise TraceError(f"{path} is a binary file: give a trace in JSON lines, plain or with gzip.")
        lines: Iterable[bytes]
        first = file.readline()
        first = first.removeprefix(codecs.BOM_UTF8)
        if first.strip() == b"{":
            whole = first + file.read()
            if _is_json(whole):
                yield 1, whole
                return
            lines = whole.splitlines()
        else:
            lines = chain((first,), file)
        yield from ((number, line) for number, line in enumerate(lines, 1) if line.strip())


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """The file's bytes, unpacked if it is compressed."""
    with path.open("rb") as file:
        if file.peek(2)[:2] != _GZIP:
            yield file
            return
        try:
            with gzip.open(file) as unpacked:
                yield unpacked
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise TraceError(f"{path} breaks off or is damaged: its gzip data cannot be read to the end.") from None


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
