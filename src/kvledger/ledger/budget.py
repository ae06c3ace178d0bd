"""Whether a key may make another request: its budget of the month, and its rate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum

from kvledger.clock import Clock
from kvledger.ledger.keys import Key
from kvledger.ledger.money import plain, total

WINDOW = 60.0
"""Seconds that a rate counts over."""


class Answer(Enum):
    """What a key is told."""

    ALLOWED = "allowed"
    OVER_BUDGET = "over_budget"
    OVER_RATE = "over_rate"


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer, and for a refusal the sentence and the seconds after which it would be another."""

    answer: Answer
    message: str = ""
    retry_after: float = 0.0

    def __bool__(self) -> bool:
        return self.answer is Answer.ALLOWED


@dataclass(slots=True)
class _Month:
    begins: float
    spent: Decimal


class Budgets:
    """What each key spent this month and asked for in the last minute. For one thread (the event loop's).

    A budget is checked before a request and charged after it, so requests that run at the same time can overrun it by
    what they cost; a price that is unknown charges nothing. Months are calendar months in UTC.
    """

    def __init__(self, clock: Clock, spent: Callable[[str, float], Decimal]) -> None:
        """`spent(name, since)` says what a key has spent since a time: `Ledger.spent`. It is asked once per key and
        month, then charges are added to it."""
        self._clock = clock
        self._spent = spent
        self._months: dict[str, _Month] = {}
        self._asked: dict[str, deque[float]] = {}

    def ask(self, key: Key) -> Decision:
        """Whether `key` may make a request now; if so, it counts towards the rate."""
        now = self._clock.now()
        if key.budget is not None:
            spent = self._month(key.name, now).spent
            if spent >= key.budget:
                message = (
                    f"The key {key.name} has spent {plain(spent)} of its {plain(key.budget)} dollars this month:"
                    " wait for the next one, or ask for a larger budget."
                )
                return Decision(Answer.OVER_BUDGET, message, _next_month(now) - now)
        if key.rate is not None:
            times = self._asked.setdefault(key.name, deque())
            while times and times[0] <= now - WINDOW:
                times.popleft()
            if len(times) >= key.rate:
                wait = times[len(times) - key.rate] + WINDOW - now
                message = f"The key {key.name} may make {key.rate} requests per minute: wait {wait:.1f} seconds."
                return Decision(Answer.OVER_RATE, message, wait)
            times.append(now)
        return Decision(Answer.ALLOWED)

    def charge(self, key: Key, usd: Decimal | None, at: float) -> None:
        """Add what a request that began `at` cost (None: unknown). Call it once the receipt is submitted."""
        if key.budget is None or usd is None:
            return
        month = self._months.get(key.name)
        if month is not None and at >= month.begins:
            month.spent = total([month.spent, usd])

    def _month(self, name: str, now: float) -> _Month:
        begins = _month_begin(now)
        month = self._months.get(name)
        if month is None or month.begins != begins:
            month = self._months[name] = _Month(begins, self._spent(name, begins))
        return month


def _month_begin(at: float) -> float:
    moment = datetime.fromtimestamp(at, UTC)
    return datetime(moment.year, moment.month, 1, tzinfo=UTC).timestamp()


def _next_month(at: float) -> float:
    moment = datetime.fromtimestamp(at, UTC)
    year, month = (moment.year + 1, 1) if moment.month == 12 else (moment.year, moment.month + 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp()
