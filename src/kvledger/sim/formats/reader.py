"""What every reader of a format is, and what they share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvledger.errors import TraceError
from kvledger.sim.trace import Record

MOST_PER_BLOCK = 1 << 24


class LineError(Exception):
    """A line that is not a request of this format; the message says why, to follow "line 7: "."""


class Reader(ABC):
    """Turns lines into records. May remember what earlier lines said."""

    name: str
    tail: str
    """What becomes of a prompt's last tokens, in words."""
    gaps: tuple[float, float] | None = None
    """Mean seconds between requests that are plausible; None if anything is."""
    ordered: bool = True
    """Whether a file's requests are in order of time."""

    def __init__(self, block_size: int, time_unit: float = 1.0) -> None:
        if not 1 <= block_size <= MOST_PER_BLOCK:
            raise TraceError(f"A block of {block_size} tokens is none: 1 to {MOST_PER_BLOCK:,} are possible.")
        self.block_size = block_size
        self.time_unit = time_unit
        """Seconds per unit of the file's times."""
        self.notes: list[str] = []
        """What the reader found worth saying, a sentence each."""

    @abstractmethod
    def records(self, line: bytes) -> Iterator[Record]:
        """The requests in one line. Raises `LineError`."""


class Names:
    """Numbers for ids that are no int64: below zero, where no other id is."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def number(self, name: object) -> int:
        return self._numbers.setdefault(name, -1 - len(self._numbers))

    def ids(self, values: Sequence[Any]) -> Sequence[int]:
        """Ids as they are in JSON, as int64 each: whole numbers stay, text and giant numbers are numbered."""
        try:
            packed = array("q", values)
            if not packed or min(packed) >= 0:
                return packed
        except (TypeError, OverflowError):
            pass
        if any(isinstance(value, bool) or not isinstance(value, int | str) for value in values):
            raise LineError("hash_ids are not whole numbers or text")
        return [value if isinstance(value, int) and 0 <= value < 1 << 63 else self.number(value) for value in values]


def decoded(line: bytes) -> dict[str, Any]:
    """A line's JSON object."""
    try:
        value = msgspec.json.decode(line)
    except RecursionError:
        raise LineError("nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LineError("not JSON") from None
    if not isinstance(value, dict):
        raise LineError("not a JSON object")
    return value


def count_of(record: dict[str, Any], field: str) -> int:
    """A field that counts something."""
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LineError(f"{field} is missing or not a whole number from 0 on")
    return value


def list_of(record: dict[str, Any], field: str) -> list[Any]:
    value = record.get(field)
    if not isinstance(value, list):
        raise LineError(f"{field} is missing or not a list")
    return value


def time_of(record: dict[str, Any], field: str, unit: float) -> float | None:
    """A field with a time, in seconds; numbers in quotes are read, too. None if there is none."""
    value = record.get(field)
    if value is None:
        return None
    try:
        time = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError):
        time = math.nan
    if not math.isfinite(time):
        raise LineError(f"{field} is not a time")
    return time * unit
