"""Events of this project's cache (`cache/events.py`), one JSON object a line.

    {"number": 1, "event": "stored", "parent": "9c1e...", "digests": ["07ab...", "51f0..."]}
    {"number": 2, "event": "removed", "digests": ["51f0..."], "reason": "evicted"}
    {"number": 3, "event": "cleared"}

A block is stored when it was computed, so a stored event is a request that asked for everything up to its last block
and had what is above its first. Requests that found everything store nothing and do not show: what a simulation says
is about the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.sim.formats.reader import LineError, Names, Reader, count_of, decoded, list_of
from kvledger.sim.trace import Record

BLOCK_SIZE = 16
"""The default of `PromptCache`."""


class EventsReader(Reader):
    name = "kvledger-events"
    tail = "Events are about full blocks only: a prompt's last tokens do not show."

    def __init__(self, *, block_size: int | None) -> None:
        super().__init__(block_size or BLOCK_SIZE)
        self.notes.append("Requests that found every block store nothing: they are not in the events, nor counted.")
        self._names = Names()
        self._parents: dict[int, int] = {}
        self._last: int | None = None

    def records(self, line: bytes) -> Iterator[Record]:
        event = decoded(line)
        number = count_of(event, "number")
        kind = event.get("event")
        if kind not in ("stored", "removed", "cleared"):
            raise LineError("event is none of stored, removed and cleared")
        if self._last is not None and number != self._last + 1:
            self.notes.append(f"The events after number {self._last} and before number {number} are missing.")
        self._last = number
        if kind == "stored":
            yield self._stored(event)

    def _stored(self, event: dict[str, object]) -> Record:
        parent = self._names.number(event.get("parent"))
        for name in list_of(event, "digests"):
            digest = self._names.number(name)
            self._parents[digest] = parent
            parent = digest
        path: list[int] = []
        while parent in self._parents:
            if len(path) > len(self._parents):
                raise LineError("the digests go in a circle")
            path.append(parent)
            parent = self._parents[parent]
        path.reverse()
        return Record(path, len(path) * self.block_size)
