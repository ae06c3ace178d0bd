"""How long what is cached stays, and how much of it: time to live, pins, limits."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from heapq import heappop, heappush

from kvledger.cache.pool import BlockPool
from kvledger.text.prompt import Mark

BOOKKEEPING_BYTES = 400
"""Upper bound of what the cache's own notes take per block; byte limits count it along with the KV."""


def blocks_within(limit_bytes: int, bytes_per_block: int) -> int:
    """The number of blocks whose KV and bookkeeping fit into `limit_bytes`."""
    return limit_bytes // (bytes_per_block + BOOKKEEPING_BYTES)


def keep(pool: BlockPool, path: Sequence[int], marks: Sequence[Mark], block_size: int, budget: int) -> None:
    """Apply marks to the full blocks of a path that lie before them: their time to live, and a pin.

    A block keeps the longest time to live that any mark gave it. At most `budget` blocks of the pool are pinned at a
    time, those nearest to the root first; a mark that finds the budget spent still counts for the time to live.
    """
    for mark in marks:
        for block in path[: mark.position // block_size]:
            if mark.ttl is not None:
                pool.ttl[block] = max(pool.ttl[block], mark.ttl)
            if not pool.pinned[block] and pool.num_pinned < budget:
                pool.pinned[block] = 1
                pool.num_pinned += 1


class Expiry:
    """Idle blocks by the second in which their time to live ends.

    Only says which blocks to look at: a block that was used again meanwhile is recognised by its own times. An entry
    takes 4 bytes, so that using a block again need not look for its old one.
    """

    def __init__(self) -> None:
        self._due: dict[int, array[int]] = {}
        self._seconds: list[int] = []  # the keys of `_due`, as a heap

    def add(self, deadline: float, block: int) -> None:
        if deadline == math.inf:
            return
        second = math.ceil(deadline)
        bucket = self._due.get(second)
        if bucket is None:
            bucket = self._due[second] = array("i")
            heappush(self._seconds, second)
        bucket.append(block)

    def take_due(self, now: float) -> list[int]:
        """The blocks added for deadlines up to the last whole second; each entry is handed out once."""
        blocks: list[int] = []
        while self._seconds and self._seconds[0] <= now:
            blocks += self._due.pop(heappop(self._seconds))
        return blocks
