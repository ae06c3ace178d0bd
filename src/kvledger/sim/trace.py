"""A trace as arrays: which blocks each request asked for, in the order of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Record(NamedTuple):
    """One request as a reader found it.

    `ids` name its blocks, first to last; equal ids after equal ids are equal blocks. `sizes` are their tokens, if they
    do not follow from `input_tokens` and the block size. Ids of different `scope` are never equal. `time` is in seconds
    (None: not recorded), `session` is the conversation (None: not recorded).
    """

    ids: Sequence[int]
    input_tokens: int
    time: float | None = None
    session: int | None = None
    scope: int = 0
    sizes: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A line that could not be read, and why."""

    line: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of time. Block accesses of all requests lie one after the other in `nodes` and `sizes`.

    `nodes[i]` is the number of a block *with everything before it*: two accesses have the same node if and only if
    their prompts are equal up to the end of that block. `sizes[i]` are its tokens, `ends[r]` is where request r ends.
    """

    format: str
    block_size: int
    tail: str
    """What becomes of a prompt's last tokens, in words."""
    nodes: NDArray[np.int32]
    sizes: NDArray[np.int32]
    ends: NDArray[np.int64]
    input_tokens: NDArray[np.int64]
    times: NDArray[np.float64]
    """Seconds, not decreasing."""
    sessions: NDArray[np.int64] | None
    num_nodes: int
    notes: tuple[str, ...] = ()
    """What whoever reads the figures should know about the trace, a sentence each."""
    unsure_times: str = ""
    """Why the times cannot be relied on; empty if they can."""
    skipped: tuple[Skipped, ...] = ()

    @property
    def num_requests(self) -> int:
        return len(self.ends)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each request begins in `nodes`."""
        return np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Blocks of each request."""
        return self.ends - self.starts

    def accesses_of(self, requests: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """By access, whether it belongs to one of `requests`."""
        return np.repeat(requests, self.lengths)

    def select(self, requests: NDArray[np.bool_]) -> Trace:
        """The trace of some requests alone. Nodes keep their numbers."""
        accesses = self.accesses_of(requests)
        return replace(
            self,
            nodes=self.nodes[accesses],
            sizes=self.sizes[accesses],
            ends=np.cumsum(self.lengths[requests]),
            input_tokens=self.input_tokens[requests],
            times=self.times[requests],
            sessions=None if self.sessions is None else self.sessions[requests],
        )
