"""A bound on what one rendering of a chat template may do, so that no template can hang or fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from kvledger.clock import Clock

_CHARS_PER_UNIT = 64


class WorkExceededError(Exception):
    """The template does more than any sensible template would."""


class _Budget:
    def __init__(self, units: int, clock: Clock, seconds: float) -> None:
        self.units = units
        self.clock = clock
        self.deadline = clock.monotonic() + seconds


_budget: ContextVar[_Budget | None] = ContextVar("_budget", default=None)


@contextmanager
def bounded(units: int, clock: Clock, seconds: float) -> Iterator[None]:
    """Within this block, `spend` raises `WorkExceededError` after so many units, or so many seconds."""
    token = _budget.set(_Budget(units, clock, seconds))
    try:
        yield
    finally:
        _budget.reset(token)


def spend(units: int = 1, *, chars: int = 0) -> None:
    """Count work before doing it: a unit is a step, a value made, or 64 characters of text. Free outside `bounded`."""
    budget = _budget.get()
    if budget is None:
        return
    budget.units -= units + chars // _CHARS_PER_UNIT
    if budget.units < 0 or budget.clock.monotonic() > budget.deadline:
        raise WorkExceededError("it goes on for too long or makes too much text")
