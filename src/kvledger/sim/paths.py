"""Block ids to nodes: one number for a block together with everything before it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.sim.compiled import compiled

_FREE = -1


@compiled
def _slot_of(parent: int, own: int, mask: int) -> int:
    mixed = np.uint64(parent) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(own) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(mask))  # type: ignore[return-value]  # Numba's integers


@compiled
def _place(table: NDArray[np.int32], parents: NDArray[np.int32], ids: NDArray[np.int64], count: int) -> None:
    """Enter nodes `0 .. count - 1` into an empty table."""
    mask = len(table) - 1
    for node in range(count):
        slot = _slot_of(parents[node], ids[node], mask)
        while table[slot] != _FREE:
            slot = (slot + 1) & mask
        table[slot] = node


@compiled
def _walk(
    asked: NDArray[np.int64],
    ends: NDArray[np.int64],
    scopes: NDArray[np.int32],
    table: NDArray[np.int32],
    parents: NDArray[np.int32],
    ids: NDArray[np.int64],
    count: int,
    nodes: NDArray[np.int32],
) -> int:
    """Write the node of each asked id to `nodes`, making those that are new; returns how many there are then."""
    mask = len(table) - 1
    start = 0
    for request in range(len(ends)):
        parent = np.int32(-1 - scopes[request])
        for at in range(start, ends[request]):
            own = asked[at]
            slot = _slot_of(int(parent), own, mask)
            node = table[slot]
            while node != _FREE and (parents[node] != parent or ids[node] != own):
                slot = (slot + 1) & mask
                node = table[slot]
            if node == _FREE:
                node = np.int32(count)
                table[slot] = node
                parents[node] = parent
                ids[node] = own
                count += 1
            nodes[at] = node
            parent = node
        start = ends[request]
    return count


class Paths:
    """A hash table of (parent node, id), decided by equality. 20 bytes a node, and up to twice that while it grows."""

    def __init__(self) -> None:
        self.count = 0
        self._table = np.full(1 << 12, _FREE, np.int32)
        self._parents = np.empty(1 << 11, np.int32)
        self._ids = np.empty(1 << 11, np.int64)

    def walk(self, asked: NDArray[np.int64], ends: NDArray[np.int64], scopes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The nodes of requests that lie one after the other in `asked` and end at `ends`."""
        self._grow(self.count + len(asked))
        nodes = np.empty(len(asked), np.int32)
        self.count = int(_walk(asked, ends, scopes, self._table, self._parents, self._ids, self.count, nodes))
        return nodes

    def _grow(self, needed: int) -> None:
        size = len(self._ids)
        if needed <= size:
            return
        while size < needed:
            size *= 2
        parents, ids = np.empty(size, np.int32), np.empty(size, np.int64)
        parents[: self.count] = self._parents[: self.count]
        ids[: self.count] = self._ids[: self.count]
        self._parents, self._ids = parents, ids
        self._table = np.full(2 * size, _FREE, np.int32)
        _place(self._table, parents, ids, self.count)
