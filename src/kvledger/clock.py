"""Time, handed in. Nothing else in the project reads it.

Two readings, because they answer two questions: `now` is wall-clock time in seconds since the Unix epoch
(what a record, a TTL or a bill needs), `monotonic` is an arbitrary origin that never runs backwards (what a
duration needs).
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time, in seconds."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary fixed moment; never runs backwards."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.perf_counter()


class ManualClock:
    """A clock that moves only when told to: for tests, simulators and the emulator."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds`; raises `ValueError` if that is negative or not a number."""
        if not seconds >= 0:
            raise ValueError(f"a clock cannot move by {seconds} seconds: give zero or more")
        self._now += seconds
