"""Eviction policies by name, and what the offline ones have to be told during a replay."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from kvledger.cache.eviction import LFU, LRU, Belady, CostAware, Policy
from kvledger.cache.pool import BlockPool
from kvledger.errors import SimulationError
from kvledger.sim.trace import Trace

POLICIES = {
    "lru": "least recently used first",
    "fifo": "first computed first, however often it was used since",
    "lfu": "least often hit first",
    "cost": "cheapest to compute again first, with age (GreedyDual-Size-Frequency, attention of a 7B model)",
    "belady": "farthest next use first, which needs to know the future",
}

_CROSSOVER_TOKENS = 24_576
"""Context at which attention costs as much as the rest of the forward pass: 4 * d * L * n = 2 * 12 * L * d * d
operations at n = 6 * d, and d = 4096 for a 7B model."""


def check_name(kind: str, name: str, known: Sequence[str]) -> None:
    """Raise `SimulationError` if there is no such thing, naming what it might have been."""
    if name not in known:
        near = get_close_matches(name, known, n=1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise SimulationError(f"There is no {kind} {name!r}: {meant}known are {', '.join(known)}.")


class FIFO:
    """First computed first. `since` maps a block to the request that computed it, kept up to date by the replay."""

    def __init__(self) -> None:
        self.since: dict[int, int] = {}

    def priority(self, block: int, pool: BlockPool) -> float:
        return self.since[block]


class Tutor:
    """A policy with what it must be told: call `tell` after each request, before its lease is released."""

    def __init__(self, name: str, trace: Trace) -> None:
        self.policy: Policy
        self._since: dict[int, int] | None = None
        self._next_use: dict[int, float] = {}
        self._next: NDArray[np.float64] | None = None
        if name == "fifo":
            fifo = FIFO()
            self.policy, self._since = fifo, fifo.since
        elif name == "belady":
            self.policy, self._next = Belady(self._next_use), next_uses(trace)
        elif name == "cost":
            self.policy = CostAware(_CROSSOVER_TOKENS / trace.block_size)
        else:
            self.policy = LFU() if name == "lfu" else LRU()

    def tell(self, request: int, first_access: int, table: Sequence[int], found: int) -> None:
        """`request` used the blocks of `table`, of which the first `found` were there before it came."""
        if self._since is not None:
            self._since.update(dict.fromkeys(table[found:], request))
        if self._next is not None:
            moments = self._next[first_access : first_access + len(table)].tolist()
            self._next_use.update(zip(table, moments, strict=True))


def next_uses(trace: Trace) -> NDArray[np.float64]:
    """By access, the next request that asks for the same node; infinite if none does."""
    users = np.repeat(np.arange(trace.num_requests), trace.lengths)
    order = np.argsort(trace.nodes, kind="stable")  # a request has a node at most once, so this is in order of time
    result = np.full(len(order), np.inf)
    again = trace.nodes[order[1:]] == trace.nodes[order[:-1]]
    result[order[:-1][again]] = users[order[1:][again]]
    return result
