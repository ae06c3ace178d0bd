"""Hit ratios, with what is divided by what.

Two readings of one trace gave 0.51 and 0.553 at infinite size (kvcache-ai/Mooncake issue 4020), so every ratio here
comes with its numerator and its denominator, and the words for both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.sim.trace import Trace

DEFINITIONS = {
    "hit": (
        "A block hits if it and every block before it in the same prompt were in the cache when the request arrived:"
        " a match is a contiguous prefix from block 0."
    ),
    "block": "hits: blocks that hit. of: blocks asked for, a partial last one included.",
    "full_block": "hits: blocks that hit and are full. of: full blocks asked for.",
    "token": "hits: tokens in blocks that hit. of: all input tokens.",
    "whole": "Every request of the trace, counted from an empty cache.",
    "last_half": (
        "The second half of the requests, from number floor(n / 2) on, in order of time; the cache is warm from the"
        " first half."
    ),
}


@dataclass(frozen=True, slots=True)
class Ratio:
    """`hits` of `of`."""

    hits: int
    of: int

    @property
    def value(self) -> float | None:
        """None if nothing was asked for."""
        return self.hits / self.of if self.of else None


@dataclass(frozen=True, slots=True)
class Window:
    """The three ratios of one window; `DEFINITIONS` has the words."""

    block: Ratio
    full_block: Ratio
    token: Ratio


@dataclass(frozen=True, slots=True)
class Score:
    """How much of a trace hit: of all requests, and of the second half."""

    whole: Window
    last_half: Window


def middle(trace: Trace) -> tuple[int, int]:
    """Where the second half begins: the request, and its first access."""
    request = trace.num_requests // 2
    return request, int(trace.starts[request])


def score(trace: Trace, hit: NDArray[np.bool_]) -> Score:
    """Count what hit, given by access."""
    request, access = middle(trace)
    return Score(_window(trace, hit, 0, 0), _window(trace, hit, request, access))


def _window(trace: Trace, hit: NDArray[np.bool_], request: int, access: int) -> Window:
    hit, sizes = hit[access:], trace.sizes[access:]
    full = sizes == trace.block_size
    return Window(
        block=Ratio(int(np.count_nonzero(hit)), len(hit)),
        full_block=Ratio(int(np.count_nonzero(hit & full)), int(np.count_nonzero(full))),
        token=Ratio(int(sizes[hit].sum(dtype=np.int64)), int(trace.input_tokens[request:].sum())),
    )
