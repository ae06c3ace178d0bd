"""Which idle block goes first: one-method policies, and the queue that keeps the candidates in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from kvledger.cache.pool import BlockPool


class Policy(Protocol):
    """What a block is worth. Only leaves of the trie compete, so children always go before their parents."""

    def priority(self, block: int, pool: BlockPool) -> float:
        """The worth of an idle block; the least goes first, and among equals the least recently used.

        Asked once, when the block becomes a candidate.
        """
        ...


class LRU:
    """Least recently used first; of blocks used together, the tail first. So all blocks are worth the same."""

    def priority(self, block: int, pool: BlockPool) -> float:
        return 0.0


class LFU:
    """Least often hit first."""

    def priority(self, block: int, pool: BlockPool) -> float:
        return pool.hits[block]


class CostAware:
    """Cheapest to bring back first, per byte held and with age: GreedyDual-Size-Frequency (Cherkasova, 1998).

    Worth is `floor + uses * cost / size`: `floor` is the worth of the last victim, so what nobody asks for sinks
    below newcomers; `cost` counts token computations, where a token at position p costs `1 + p / crossover` because
    attention grows with position; `size` is one block, open or full. `crossover` is the context length, in tokens, at
    which attention costs as much as the rest of the forward pass.
    """

    def __init__(self, crossover: float) -> None:
        self.crossover = crossover

    def priority(self, block: int, pool: BlockPool) -> float:
        tokens = pool.sizes[block]
        middle = pool.positions[block] + tokens / 2
        return pool.floor + (1 + pool.hits[block]) * tokens * (1 + middle / self.crossover)


class Belady:
    """Farthest next use first: the optimum, for simulators that know the future.

    `next_use` maps a block to the moment of its next use and is kept up to date by the simulator, which must do so
    before it releases the lease that holds the block. A block it does not name is never used again.
    """

    def __init__(self, next_use: Mapping[int, float]) -> None:
        self.next_use = next_use

    def priority(self, block: int, pool: BlockPool) -> float:
        return -self.next_use.get(block, float("inf"))


class Candidate(NamedTuple):
    """An idle leaf at the moment it was queued. Void once the block's tick has changed or it is no idle leaf."""

    priority: float
    tick: int
    block: int


class EvictionQueue:
    """Candidates by rising priority, then tick.

    Void candidates stay until they come up or the queue has doubled; the reader recognises them. Candidates that
    arrive in order, as they do under LRU, go to the end of a plain queue in O(1); only the others pay for a heap.
    """

    def __init__(self, is_live: Callable[[Candidate], bool]) -> None:
        self._is_live = is_live
        self._run: deque[Candidate] = deque()
        self._heap: list[Candidate] = []
        self._limit = 1024

    def __len__(self) -> int:
        return len(self._run) + len(self._heap)

    def __iter__(self) -> Iterator[Candidate]:
        yield from self._run
        yield from self._heap

    def push(self, candidate: Candidate) -> None:
        if not self._run or candidate >= self._run[-1]:
            self._run.append(candidate)
        else:
            heappush(self._heap, candidate)
        if len(self) > self._limit:
            self._run = deque(filter(self._is_live, self._run))
            self._heap = list(filter(self._is_live, self._heap))
            heapify(self._heap)
            self._limit = max(1024, 2 * len(self))

    def first(self) -> Candidate | None:
        """The next candidate, left in place."""
        if self._run and (not self._heap or self._run[0] <= self._heap[0]):
            return self._run[0]
        return self._heap[0] if self._heap else None

    def pop(self) -> Candidate | None:
        """Take the next candidate, live or void; None when there is none."""
        if self._run and (not self._heap or self._run[0] <= self._heap[0]):
            return self._run.popleft()
        return heappop(self._heap) if self._heap else None
