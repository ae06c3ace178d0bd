"""What happened to cached blocks, numbered, for routers and other observers.

The events are about full blocks in RAM. Whoever applies them in order holds exactly the resident set after each one:
a block is stored once, however many leases use it, and removed once, when it is gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from kvledger.cache.digest import Digest


class RemovalReason(Enum):
    """Why a block left the cache."""

    EVICTED = "evicted"
    """It was worth least when room was needed."""
    EXPIRED = "expired"
    """It was idle for its whole time to live."""
    REPLACED = "replaced"
    """A longer block with the same beginning took its place."""
    CLEARED = "cleared"
    """Somebody cleared the cache."""


@dataclass(frozen=True)
class Stored:
    """Blocks entered the cache, one below the other; `parent` is the digest of the block, or root, above the first."""

    number: int
    parent: Digest
    digests: tuple[Digest, ...]


@dataclass(frozen=True)
class Removed:
    """Blocks left the cache, children before parents."""

    number: int
    digests: tuple[Digest, ...]
    reason: RemovalReason


@dataclass(frozen=True)
class Cleared:
    """Every block left the cache."""

    number: int


Event = Stored | Removed | Cleared


class EventLog:
    """The last `capacity` events, numbered from 1 without gaps."""

    def __init__(self, capacity: int = 10_000) -> None:
        self._events: deque[Event] = deque(maxlen=capacity)
        self.last = 0
        """Number of the newest event; 0 before the first."""

    def stored(self, parent: Digest, digests: tuple[Digest, ...]) -> None:
        self.last += 1
        self._events.append(Stored(self.last, parent, digests))

    def removed(self, digests: tuple[Digest, ...], reason: RemovalReason) -> None:
        self.last += 1
        self._events.append(Removed(self.last, digests, reason))

    def cleared(self) -> None:
        self.last += 1
        self._events.append(Cleared(self.last))

    def since(self, number: int) -> list[Event] | None:
        """The events after `number`, or None if some of them are no longer kept: then start from a snapshot."""
        missing = self.last - number
        if not 0 <= missing <= len(self._events):
            return None
        return list(islice(self._events, len(self._events) - missing, None))
