"""LRU at every size at once: how deep in the stack each block lay when it was asked for.

LRU is a stack algorithm (Mattson, Gecsei, Slutz, Traiger: Evaluation techniques for storage hierarchies, 1970): put all
blocks ever used in one list, the most recent first, and a cache of C blocks holds the first C of them, for every C. An
access hits if and only if its block lies at depth C or above.

This holds for a trie that evicts leaves first, too, if a request leaves its blocks in the list with the deeper ones
below. Then a block never lies above its parent, because whoever uses a block uses its parent. So the first C blocks are
closed under "parent of", the last of them is a leaf, and matching a prefix is the same as asking for each block.

Because the blocks of one request that nobody has used since are the end of its chain and lie next to each other in the
list, depths are counted by request: a Fenwick tree (Fenwick, 1994) over requests has how many blocks each still has in
the list, and is asked once per run of blocks that the same earlier request left, not once per block.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvledger.sim.compiled import compiled
from kvledger.sim.trace import Trace

MISS = 0
"""The depth of a block that no cache holds: never used before, or expired."""


def depths(trace: Trace, *, ttl: float | None = None, tail_first: bool = True) -> NDArray[np.int32]:
    """By access, the least number of blocks that an LRU cache needs to have it and everything before it; or `MISS`.

    `ttl`: seconds without use after which a block is gone. `tail_first` is the order in which the blocks of one request
    go; without it the head goes first, and what is left behind it is of no use but takes up room.
    """
    return _depths(
        trace.nodes, trace.ends, trace.times, trace.num_nodes, math.inf if ttl is None else float(ttl), tail_first
    )


@compiled
def _depths(
    nodes: NDArray[np.int32],
    ends: NDArray[np.int64],
    times: NDArray[np.float64],
    num_nodes: int,
    ttl: float,
    tail_first: bool,
) -> NDArray[np.int32]:
    num_requests = len(ends)
    user = np.full(num_nodes, -1, np.int32)  # the last request that used the node
    left = np.zeros(num_requests, np.int32)  # blocks whose last user is this request: the end of its chain
    tree = np.zeros(num_requests + 1, np.int32)  # Fenwick tree over `left`
    total = 0
    result = np.zeros(len(nodes), np.int32)
    start = 0
    for request in range(num_requests):
        end = ends[request]
        moved = 0
        deepest = 0
        at = start
        while at < end:
            earlier = user[nodes[at]]
            if earlier < 0:
                break  # never used, and so is what follows it
            up_to = 0
            i = earlier + 1
            while i > 0:
                up_to += tree[i]
                i -= i & -i
            newer = total - up_to + moved
            length = ends[earlier] - (ends[earlier - 1] if earlier > 0 else 0)
            gone = length - left[earlier]
            expired = times[request] - times[earlier] >= ttl
            first = at
            while at < end and user[nodes[at]] == earlier:
                position = at - start
                depth = newer + 1 + (position - gone if tail_first else length - 1 - position)
                deepest = max(deepest, depth)
                if not expired:
                    result[at] = deepest
                at += 1
            count = at - first
            left[earlier] -= count
            i = earlier + 1
            while i <= num_requests:
                tree[i] -= count
                i += i & -i
            total -= count
            moved += count
        for index in range(start, end):
            user[nodes[index]] = request
        left[request] = end - start
        i = request + 1
        while i <= num_requests:
            tree[i] += end - start
            i += i & -i
        total += end - start
        start = end
    return result
