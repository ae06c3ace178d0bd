"""The scheduling policy: who computes how many tokens in the next step.

There are no prefill and decode modes. A sequence has tokens whose KV is missing (the whole prompt at first, one token
per step later, everything again after a preemption), and a step schedules some number of them.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from kvledger.cache import Lease, Pending, PromptCache
from kvledger.clock import Clock
from kvledger.engine.sequence import Sequence


@dataclass(frozen=True)
class Chunk:
    """`num_tokens` tokens of `sequence` from `sequence.num_computed` on, to be computed in this step."""

    sequence: Sequence
    num_tokens: int

    @property
    def is_last(self) -> bool:
        """Nothing is missing after this chunk, so its logits give the next token."""
        return self.num_tokens == self.sequence.num_uncomputed


class Scheduler:
    """Waiting and running sequences, both in order of arrival, and the leases of the running ones.

    At most `max_running` sequences run and at most `step_tokens` tokens are computed in a step.
    """

    def __init__(self, cache: PromptCache, clock: Clock, *, max_running: int, step_tokens: int) -> None:
        if max_running < 1 or step_tokens < 2 * max_running:
            raise ValueError(
                f"step_tokens is {step_tokens} for {max_running} running sequences: give two or more for each"
            )
        self.cache = cache
        self.clock = clock
        self.max_running = max_running
        self.step_tokens = step_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0
        self._num_arrived = 0

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue. The cache must be able to hold its tokens (`cache.fits`)."""
        self._num_arrived += 1
        sequence.number = self._num_arrived
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is, and give back what it holds."""
        (self.waiting if sequence.lease is None else self.running).remove(sequence)
        if lease := sequence.retire():
            self.cache.release(lease)

    def schedule(self) -> list[Chunk]:
        """The work of the next step; empty only when nothing can run.

        1. Room: every running sequence gets blocks for all its tokens, oldest first; the youngest gives way.
        2. Admission to the free places, first come first served; who waits for a prefix that a running sequence is
           computing holds a place and lets the next one pass.
        3. Budget: fewest missing tokens first, so that decoding never stops and a short prompt overtakes a long one;
           half the step is kept for the oldest unfinished prompt, so that it is not overtaken for ever.
        """
        num_preemptions = self.num_preemptions
        for sequence in self.running.copy():
            while sequence.lease is not None and not self.cache.extend(sequence.lease, len(sequence.tokens)):
                self._preempt(self.running[-1])

        was_preempted = self.num_preemptions > num_preemptions
        places = 0 if was_preempted and self.running else self.max_running - len(self.running)
        for sequence in self.waiting[:places]:
            lease = self._acquire(sequence)
            if lease is None:
                break
            if not isinstance(lease, Pending):
                self._admit(sequence, lease)

        chunks = []
        budget = self.step_tokens
        oldest = next((sequence for sequence in self.running if sequence.num_uncomputed > 1), None)
        kept = min(oldest.num_uncomputed, budget // 2) if oldest else 0
        for sequence in sorted(self.running, key=lambda sequence: sequence.num_uncomputed):
            if sequence is oldest:
                kept = 0
            num_tokens = min(sequence.num_uncomputed, budget - kept)
            if num_tokens:
                chunks.append(Chunk(sequence, num_tokens))
                budget -= num_tokens
        return chunks

    def _acquire(self, sequence: Sequence) -> Lease | Pending | None:
        """A lease on blocks for all tokens, with one to spare where others run: who has just come should not go."""
        request = sequence.request
        return self.cache.acquire(
            sequence.namespace,
            sequence.tokens,
            reserve=self.cache.block_size if self.running else 0,
            segments=request.prompt.segments,
            marks=request.prompt.marks,
            use_cache=request.cache,
            again=sequence.admitted is not None,
        )

    def _admit(self, sequence: Sequence, lease: Lease) -> None:
        self.waiting.remove(sequence)
        sequence.admit(lease, self.clock.monotonic())
        bisect.insort(self.running, sequence, key=lambda sequence: sequence.number)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to its place in the queue. Committed blocks stay in the cache for as long as there is room."""
        self.num_preemptions += 1
        self.remove(sequence)
        bisect.insort(self.waiting, sequence, key=lambda sequence: sequence.number)
