"""Mooncake traces (kvcache-ai/Mooncake, FAST25-release/traces): one request a line, one service, no conversations.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2354]}

Times are milliseconds. A hash id names a block of 512 tokens with everything before it; the last block of a prompt may
be partial and has an id like the others. Simulators and load generators use the same lines with a `block_size` of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from kvledger.sim.formats.reader import LineError, Names, Reader, count_of, decoded, list_of, time_of
from kvledger.sim.trace import Record

BLOCK_SIZE = 512
PARTIAL_TAIL = "The last block of a prompt may be partial; it has an id, takes a whole block of room, and can hit."


class _Line(msgspec.Struct):
    input_length: int
    hash_ids: list[int]
    timestamp: float | None = None
    block_size: int | None = None


_decoder = msgspec.json.Decoder(_Line)


class MooncakeReader(Reader):
    name = "mooncake"
    tail = PARTIAL_TAIL
    gaps = (0.01, math.inf)

    def __init__(self, first: dict[str, object], *, block_size: int | None, time_unit: float | None) -> None:
        declared = first.get("block_size")
        self._fixed = block_size
        stated = declared if isinstance(declared, int) and declared > 0 else BLOCK_SIZE
        super().__init__(block_size or stated, time_unit or 0.001)
        self._names = Names()

    def records(self, line: bytes) -> Iterator[Record]:
        try:
            fast = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield self._slowly(line)
            return
        self._check_block_size(fast.block_size)
        time = fast.timestamp
        if fast.input_length < 0 or (time is not None and not math.isfinite(time)):
            yield self._slowly(line)
            return
        ids: Sequence[int] = fast.hash_ids
        if ids and not 0 <= min(ids) <= max(ids) < 1 << 63:
            ids = self._names.ids(ids)
        yield Record(ids, fast.input_length, None if time is None else time * self.time_unit)

    def _slowly(self, line: bytes) -> Record:
        """A line with ids or times of another type, or one that is broken: then this says how."""
        record = decoded(line)
        self._check_block_size(record.get("block_size"))
        ids = self._names.ids(list_of(record, "hash_ids"))
        return Record(ids, count_of(record, "input_length"), time_of(record, "timestamp", self.time_unit))

    def _check_block_size(self, declared: object) -> None:
        if declared is not None and declared != self.block_size and self._fixed is None:
            raise LineError(f"block_size is {declared}, where other lines have {self.block_size}")
