"""The scheduling policy: who computes how many tokens in the next step.

There are no prefill and decode modes. A sequence has tokens whose KV is missing (the whole prompt at first, one token
per step later, everything again after a preemption), and a step schedules some number of them.
"""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass

from kvledger.cache import Lease, OverQuota, Pending, PromptCache
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

    A sequence whose prefix is being loaded from the lower tier runs, but computes nothing yet. At most `max_running`
    sequences run and at most `step_tokens` tokens are computed in a step.
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
        if sequence.lease is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self.cache.release(sequence.lease)
            sequence.retire()

    def schedule(self) -> list[Chunk]:
        """The work of the next step; empty only when nothing can run, or when all that runs is loading.

        1. Room: every running sequence gets blocks for all its tokens, oldest first; the youngest gives way.
        2. Admission to the free places, unless somebody has just given way: see `_candidates` for the order.
        3. Budget: fewest missing tokens first, so that decoding never stops and a short prompt overtakes a long one;
           half the step is kept for the oldest unfinished prompt, so that it is not overtaken for ever.
        """
        for sequence in self.running:
            lease = sequence.lease
            if lease is not None and lease.loading is not None and self.cache.receive(lease):
                sequence.begin()
        self._admit_waiting(held_up=self._make_room())
        computing = [sequence for sequence in self.running if not sequence.is_loading]

        chunks = []
        budget = self.step_tokens
        oldest = next((sequence for sequence in computing if sequence.num_uncomputed > 1), None)
        kept = min(oldest.num_uncomputed, budget // 2) if oldest else 0
        for sequence in sorted(computing, key=lambda sequence: sequence.num_uncomputed):
            if sequence is oldest:
                kept = 0
            num_tokens = min(sequence.num_uncomputed, budget - kept)
            if num_tokens:
                chunks.append(Chunk(sequence, num_tokens))
                budget -= num_tokens
        return chunks

    def _make_room(self) -> set[str]:
        """Give every running sequence blocks for all its tokens; where there are none, the youngest gives way.

        That is the youngest of the same tenant where only its quota is short. Returns the tenants of whom nobody should
        be admitted now, because it would take the room that was just made.
        """
        gave_way: set[str] = set()
        is_full = False
        for sequence in self.running.copy():
            while sequence.lease is not None and not self.cache.extend(sequence.lease, len(sequence.tokens)):
                rivals = self.running
                if self.cache.is_over_quota(sequence.lease, len(sequence.tokens)):
                    rivals = [rival for rival in rivals if rival.tenant == sequence.tenant]
                    gave_way.add(sequence.tenant)
                else:
                    is_full = True
                self._preempt(rivals[-1])
        if is_full and self.running:
            return {sequence.tenant for sequence in self.waiting}
        return gave_way & {sequence.tenant for sequence in self.running}

    def _admit_waiting(self, held_up: set[str]) -> None:
        """Admit who fits. Who does not lets nobody pass, except that a full quota concerns its own tenant only."""
        places = self.max_running - len(self.running)
        for sequence in self._candidates() if places else ():
            if sequence.tenant in held_up:
                continue
            lease = self._acquire(sequence)
            if isinstance(lease, OverQuota):
                held_up.add(sequence.tenant)
                continue
            if lease is None:
                break
            if isinstance(lease, Lease):
                self._admit(sequence, lease)
            places -= 1  # also for who waits for a prefix that a running sequence is about to write
            if not places:
                break

    def _candidates(self) -> list[Sequence]:
        """Who waits, in turns: the tenant with the fewest running comes next, each with its requests in their order."""
        turns = Counter(sequence.tenant for sequence in self.running)
        ranked = []
        for sequence in self.waiting:
            ranked.append((turns[sequence.tenant], sequence.number, sequence))
            turns[sequence.tenant] += 1
        return [sequence for _, _, sequence in sorted(ranked, key=lambda entry: entry[:2])]

    def _acquire(self, sequence: Sequence) -> Lease | Pending | OverQuota | None:
        """A lease on blocks for all tokens, with one to spare where others run: who has just come should not go."""
        request = sequence.request
        spare = self.cache.block_size if self.running else 0
        return self.cache.acquire(
            sequence.namespace,
            sequence.tokens,
            reserve=spare if self.cache.fits(len(sequence.tokens) + spare) else 0,
            segments=request.prompt.segments,
            marks=request.prompt.marks,
            use_cache=request.cache,
            again=sequence.admitted is not None,
        )

    def _admit(self, sequence: Sequence, lease: Lease) -> None:
        self.waiting.remove(sequence)
        sequence.admit(lease, self.clock.monotonic())
        if not sequence.is_loading:
            sequence.begin()
        bisect.insort(self.running, sequence, key=lambda sequence: sequence.number)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to its place in the queue. Committed blocks stay in the cache for as long as there is room."""
        self.num_preemptions += 1
        self.remove(sequence)
        bisect.insort(self.waiting, sequence, key=lambda sequence: sequence.number)
