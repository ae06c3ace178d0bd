"""Coding sessions of kv-cache-tester (callanjfox/kv-cache-tester, traces/): one JSON document per session.

    {"id": "trace_0074", "block_size": 64, "hash_id_scope": "local", "requests": [
        {"t": 0.0, "type": "s", "in": 29831, "out": 445, "hash_ids": [1, 2, ..., 466]},
        {"t": 9.0, "type": "subagent", "requests": [{"t": 0.0, "type": "n", "in": 900, "hash_ids": [1, 2]}]}]}

A file holds one session, or one in each line; a folder holds many files. Ids are local to a session, which its
subagents share, unless its scope is "global". Only full blocks have an id. Times are seconds since the session began;
those of a subagent's requests count from its own beginning in some files and from that of the session in others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvledger.sim.formats.reader import LineError, Names, Reader, count_of, decoded, list_of, time_of
from kvledger.sim.trace import Record

BLOCK_SIZE = 64


class KvCacheTesterReader(Reader):
    name = "kv-cache-tester"
    tail = "Only full blocks have an id: tokens after the last of them are input that cannot hit, and no block."
    gaps = (0.0, 3600.0)
    ordered = False

    def __init__(self, first: dict[str, Any], *, block_size: int | None, time_unit: float | None) -> None:
        declared = first.get("block_size")
        self._fixed = block_size
        stated = declared if isinstance(declared, int) and declared > 0 else BLOCK_SIZE
        super().__init__(block_size or stated, time_unit or 1.0)
        self._names = Names()
        self._sessions = 0

    def records(self, line: bytes) -> Iterator[Record]:
        document = decoded(line)
        declared = document.get("block_size", self.block_size)
        if declared != self.block_size and self._fixed is None:
            raise LineError(f"block_size is {declared}, where other sessions have {self.block_size}")
        session = self._sessions
        found = list(self._requests(list_of(document, "requests"), session, _scope(document, session), 0.0))
        self._sessions += 1
        if self._sessions == 2:
            self.notes.append("Every session of the trace starts at time 0: they run side by side.")
        found.sort(key=lambda record: record.time or 0.0)
        yield from found

    def _requests(self, entries: list[Any], session: int, scope: int, offset: float) -> Iterator[Record]:
        for entry in entries:
            if not isinstance(entry, dict):
                raise LineError("an entry of requests is not an object")
            time = time_of(entry, "t", self.time_unit)
            if time is None:
                raise LineError("t is missing in one of the requests")
            if entry.get("type") == "subagent":
                inner = list_of(entry, "requests")
                yield from self._requests(inner, session, scope, offset + self._begin(inner, time))
            else:
                ids = self._names.ids(list_of(entry, "hash_ids"))
                yield Record(ids, count_of(entry, "in"), offset + time, session, scope)

    def _begin(self, inner: list[Any], time: float) -> float:
        """What to add to the times of a subagent that starts at `time`: nothing if they count from the session's."""
        times = [time_of(entry, "t", self.time_unit) for entry in inner if isinstance(entry, dict)]
        return time if any(each is not None and each < time for each in times) else 0.0


def _scope(document: dict[str, Any], session: int) -> int:
    scope = document.get("hash_id_scope", "local")
    if scope not in ("local", "global"):
        raise LineError(f"hash_id_scope is {scope!r}, and known are local and global")
    return 0 if scope == "global" else 1 + session
