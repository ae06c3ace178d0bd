"""What a provider's cache holds: entries keyed by the digest of a prefix, each with a lifetime."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from kvledger.cache.digest import Digest


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached prefix of `tokens` tokens. Times are seconds since the Unix epoch.

    `ttl` is the provider's word for its lifetime and `lifetime` that in seconds. The entry can be read from
    `readable_at` (the writer's response has begun) until `expires_at`, both included.
    """

    digest: Digest
    tokens: int
    ttl: str
    lifetime: float
    written_at: float
    readable_at: float
    expires_at: float

    def refreshed(self, at: float) -> Entry:
        """The entry after a request that began `at` read it. A lifetime is never shortened."""
        expires_at = max(self.expires_at, at + self.lifetime)
        return Entry(self.digest, self.tokens, self.ttl, self.lifetime, self.written_at, self.readable_at, expires_at)


class EntryStore(Protocol):
    """Where entries live. Digests already hold provider, model and scope, so one store can serve them all."""

    def get(self, digest: Digest) -> Entry | None:
        """The entry, expired ones included as long as they are remembered (so that a miss can say so)."""
        ...

    def put(self, entries: Iterable[Entry]) -> None:
        """Store or replace, all or none."""
        ...


class MemoryEntries:
    """Entries of this process: at most `capacity` (`ValueError` below 1), the least recently stored forgotten first."""

    def __init__(self, capacity: int = 1_000_000) -> None:
        if capacity < 1:
            raise ValueError(f"a store for {capacity} entries holds nothing: give one or more")
        self._capacity = capacity
        self._entries: OrderedDict[Digest, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, digest: Digest) -> Entry | None:
        return self._entries.get(digest)

    def put(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._entries[entry.digest] = entry
            self._entries.move_to_end(entry.digest)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
