"""What one request costs, line by line, and what it would have cost otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from kvledger.ledger.money import total


class LineKind(Enum):
    """What a line charges for."""

    INPUT = "input"
    CACHE_READ = "cache_read"
    CACHE_WRITE = "cache_write"
    OUTPUT = "output"
    STORAGE = "storage"


@dataclass(frozen=True, slots=True)
class Line:
    """One charge. `rate` is US dollars per million tokens (storage: per million tokens and hour), `usd` the amount;
    both are None where the price is unknown, and `reason` then says why. `ttl` tells write lines apart.

    For storage `tokens` is token-hours, rounded down; the amount is computed from token-seconds.
    """

    kind: LineKind
    tokens: int
    rate: Decimal | None
    usd: Decimal | None
    ttl: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"a line of {self.tokens} tokens: a count cannot be negative")
        for amount in (self.rate, self.usd):
            if amount is not None and (not isinstance(amount, Decimal) or not amount.is_finite() or amount < 0):
                raise ValueError(f"{amount!r} is no amount of money: it must be a Decimal of zero or more")
        if (self.usd is None) != bool(self.reason):
            raise ValueError("a line has an amount, or a reason why there is none")


@dataclass(frozen=True, slots=True)
class Bill:
    """The charges of one request in US dollars; only what was used has a line.

    `edition` names the price data, `confidence` the weakest of the records used: "A" official, "B" a dated third party
    that quotes the official page, "C" inferred or conflicting, "" unknown. `reason` is set where no price at all was
    found, with names that come `near`; every line is then unknown.
    """

    lines: tuple[Line, ...]
    edition: str
    confidence: str = ""
    reason: str = ""
    near: tuple[str, ...] = ()

    @property
    def total(self) -> Decimal | None:
        """The sum of the lines; None if any of them is unknown."""
        return self._sum(list(self.lines))

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why the total is unknown: each reason once; empty where it is known."""
        return tuple(dict.fromkeys(filter(None, (self.reason, *(line.reason for line in self.lines)))))

    def usd(self, kind: LineKind) -> Decimal | None:
        """The amount of one kind: zero where nothing of it was used, None where its price is unknown."""
        return self._sum([line for line in self.lines if line.kind is kind])

    def _sum(self, lines: list[Line]) -> Decimal | None:
        amounts = [line.usd for line in lines if line.usd is not None]
        return None if self.reason or len(amounts) < len(lines) else total(amounts)


@dataclass(frozen=True, slots=True)
class Statement:
    """The three figures of one request: its cost, its cost without a cache, and its cost with the best placement of
    cache marks (None where the caller did not say what that would have read and written)."""

    cost: Bill
    uncached: Bill
    best: Bill | None = None

    @property
    def saved(self) -> Decimal | None:
        """What the cache saved; negative where writing cost more than reading gave back; None if unknown."""
        return _difference(self.uncached.total, self.cost.total)

    @property
    def missed(self) -> Decimal | None:
        """What the best placement would have saved on top; None if unknown."""
        return _difference(self.cost.total, self.best.total) if self.best else None


def _difference(more: Decimal | None, less: Decimal | None) -> Decimal | None:
    return None if more is None or less is None else total([more, less.copy_negate()])
