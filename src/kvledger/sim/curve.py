"""The hit curve: how much of a trace hits, for every size of an LRU cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.sim.score import Ratio, Score, Window, middle
from kvledger.sim.stack import MISS, depths
from kvledger.sim.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class _Counts:
    """Hits of one window by size in blocks: `block[c]` at c blocks, and the same beyond the end as at the end."""

    block: NDArray[np.int64]
    full_block: NDArray[np.int64]
    token: NDArray[np.int64]
    of: Window
    """The window at size zero: denominators only."""

    def at(self, size: int) -> Window:
        size = min(size, len(self.block) - 1)
        return Window(
            Ratio(int(self.block[size]), self.of.block.of),
            Ratio(int(self.full_block[size]), self.of.full_block.of),
            Ratio(int(self.token[size]), self.of.token.of),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Scores of an LRU cache at any size in blocks; `end` is the least size that no larger one improves on."""

    end: int
    whole: _Counts
    last_half: _Counts

    @classmethod
    def of(cls, trace: Trace, *, ttl: float | None = None, tail_first: bool = True) -> Curve:
        """One pass over the trace; `ttl` and `tail_first` as in `stack.depths`."""
        found = depths(trace, ttl=ttl, tail_first=tail_first)
        end = int(found.max(initial=0))
        request, access = middle(trace)
        return cls(end, _counts(trace, found, end, 0, 0), _counts(trace, found, end, request, access))

    def at(self, size: int | None) -> Score:
        """The score at `size` blocks (None: no limit): exactly what `simulate` gives."""
        size = self.end if size is None else size
        return Score(self.whole.at(size), self.last_half.at(size))

    def sizes(self, count: int) -> list[int]:
        """At most `count` sizes that show the curve: evenly spaced by ratio, from one block to `end`."""
        if self.end <= count:
            return list(range(1, self.end + 1)) or [1]
        spaced = np.geomspace(1, self.end, count).round().astype(np.int64)
        return [int(size) for size in np.unique(spaced)]


def _counts(trace: Trace, found: NDArray[np.int32], end: int, request: int, access: int) -> _Counts:
    found, sizes = found[access:], trace.sizes[access:]
    full = sizes == trace.block_size
    hit = found != MISS
    of = Window(
        Ratio(0, len(found)), Ratio(0, int(np.count_nonzero(full))), Ratio(0, int(trace.input_tokens[request:].sum()))
    )
    return _Counts(
        block=_cumulated(found[hit], end),
        full_block=_cumulated(found[hit & full], end),
        token=_cumulated(found[hit], end, sizes[hit]),
        of=of,
    )


def _cumulated(found: NDArray[np.int32], end: int, weights: NDArray[np.int32] | None = None) -> NDArray[np.int64]:
    counts = np.bincount(found, weights, minlength=end + 1)  # float64 with weights: exact up to 2 ** 53 tokens
    return np.cumsum(counts).astype(np.int64)
