"""What the cache has done so far, as numbers that only grow."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from kvledger.cache.events import RemovalReason
from kvledger.cache.miss import MissReason


class Histogram:
    """Durations in seconds. `counts[i]` is of those above bound `i - 1` and up to bound `i`; the last has no bound."""

    bounds = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)

    def __init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds


@dataclass
class Counters:
    """One lookup is one admitted request, however often it had to ask and whatever became of it.

    `prompt_tokens - reused_tokens` is what first admissions left to compute; what is computed again after a preemption
    is in neither. `misses` has at most one reason per lookup. `lifetime` (from storing to removal) samples one block
    per removed run, `reuse_gap` (idle time before a hit) one per lookup that hits.
    """

    lookups: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    misses: Counter[MissReason] = field(default_factory=Counter)
    removed_blocks: Counter[RemovalReason] = field(default_factory=Counter)
    lifetime: Histogram = field(default_factory=Histogram)
    reuse_gap: Histogram = field(default_factory=Histogram)
