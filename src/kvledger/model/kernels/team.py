"""The threads that run a step together.

The caller is thread 0; the others sleep between steps. Because all of them must be running at once for the barriers of
a step to open, a team never has more threads than cores, and `run` takes one step at a time.
"""

from __future__ import annotations

import threading

from kvledger.model.kernels import step

SOLO_STEPS = 16
"""Steps of few tokens that one thread computes alone after one in which the others were late."""
LATE_LIMIT = 2


class Team:
    """`threads` in all, the caller included.

    A short step is mostly barriers. Where other programs take the cores away, every barrier may wait for a turn of the
    system's scheduler, so a short step then is one thread's work for a while; results do not depend on that.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._lock = threading.Lock()
        self._solo_steps = 0
        self._work: step.Batch | None = None
        self._start = [threading.Semaphore(0) for _ in range(threads - 1)]
        self._done = threading.Semaphore(0)
        for number in range(1, threads):
            threading.Thread(target=self._help, args=(number,), name=f"kernel-{number}", daemon=True).start()

    def run(self, batch: step.Batch) -> None:
        """Run one step on all threads; returns when it is complete."""
        with self._lock:
            if self._solo_steps and len(batch.tokens) <= step.FEW_TOKENS:
                self._solo_steps -= 1
                step.run(0, 1, batch)
                return
            self._work = batch
            for start in self._start:
                start.release()
            step.run(0, self.threads, batch)
            for _ in self._start:
                self._done.acquire()
            if batch.counters[step.LATE] > LATE_LIMIT:
                self._solo_steps = SOLO_STEPS

    def _help(self, number: int) -> None:
        while True:
            self._start[number - 1].acquire()
            assert self._work is not None
            step.run(number, self.threads, self._work)
            self._done.release()
