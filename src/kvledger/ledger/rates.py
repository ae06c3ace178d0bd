"""The rates of one request, and how they are put together from the library's data and ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING

from kvledger.ledger.account import Usage
from kvledger.ledger.library import CONFIDENCE, rates_of, variant
from kvledger.ledger.money import times
from kvledger.ledger.overlay import Factor, Fraction, PriceRecord, Tier

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Rates:
    """US dollars per million tokens of one whole request; `storage` per million tokens and hour. None is unknown.

    `writes` is by lifetime. `confidence` is the weakest of the records that these come from (`Bill.confidence`).
    """

    input: Decimal
    output: Decimal
    read: Decimal | None = None
    writes: Mapping[str, Decimal] = field(default_factory=dict)
    storage: Decimal | None = None
    confidence: str = CONFIDENCE


class Sheet:
    """Rates while they are put together, by key: "input", "read", "output", "storage", and each lifetime of a write.

    Keys in `_own` come from our data; the library's variants for a service tier do not know those.
    """

    def __init__(
        self, model: ModelInfo | None, records: list[PriceRecord], at: datetime, usage: Usage, default_ttl: str
    ) -> None:
        """The standard rates at a time, for a prompt as long as that of `usage`: ours over the library's."""
        self._model, self._at, self._default_ttl = model, at, default_ttl
        self._prompt_tokens = usage.split.prompt_tokens
        self._rates: dict[str, Decimal] = {}
        self._own: set[str] = set()
        if model is not None:
            self._rates.update(rates_of(model.get_prices(at), self._prompt_tokens, default_ttl))
        for record in records:
            own = _of_record(record, usage)
            self._rates.update(own)
            self._own.update(own)
        strengths: list[str] = [record.confidence for record in records]
        self._confidence = max(strengths if self._own >= {"input", "output"} else [*strengths, CONFIDENCE])

    @property
    def is_complete(self) -> bool:
        return self._rates.keys() >= {"input", "output"}

    def doubt(self, confidence: str) -> None:
        """The rates are no surer than this."""
        self._confidence = max(self._confidence, confidence)

    def vary(self, context: Mapping[str, str], factor: Factor | None) -> bool:
        """Take the library's own rates for a context; says whether it has any on that day.

        Rates that they do not name stay, except our own, which go by `factor`.
        """
        price = variant(self._model, context, self._at)
        if price is None:
            return False
        own = {key: value for key, value in self._rates.items() if key in self._own}
        self._rates.update(rates_of(price, self._prompt_tokens, self._default_ttl))
        self._rates.update(own if factor is None else _multiplied(own, factor))
        return True

    def multiply(self, factor: Factor) -> None:
        self._rates = _multiplied(self._rates, factor)
        self.doubt(factor.confidence)

    def derive(self, fraction: Fraction) -> None:
        """Add the rate that is published as a part of the input price, unless there is one already.

        A fraction for explicit caches replaces the read rate, which is that of implicit ones.
        """
        if fraction.rate not in self._rates or fraction.cache:
            self._rates[fraction.rate] = times(fraction.of_input, self._rates["input"])
            self.doubt(fraction.confidence)

    def rates(self) -> Rates:
        """The finished rates; a write without a stated lifetime ("default") costs what the default one does."""
        plain = {"input", "read", "output", "storage"}
        writes = {key: rate for key, rate in self._rates.items() if key not in plain}
        if self._default_ttl in writes:
            writes["default"] = writes[self._default_ttl]
        return Rates(
            input=self._rates["input"],
            output=self._rates["output"],
            read=self._rates.get("read"),
            writes=writes,
            storage=self._rates.get("storage"),
            confidence=self._confidence,
        )


def _multiplied(rates: Mapping[str, Decimal], factor: Factor) -> dict[str, Decimal]:
    # Storage is billed by the hour, whatever the tier of the requests that read it.
    keeps = {"storage", *factor.keeps}
    return {key: rate if key in keeps else times(factor.factor, rate) for key, rate in rates.items()}


def _of_record(record: PriceRecord, usage: Usage) -> dict[str, Decimal]:
    reached = [tier for tier in record.tiers if usage.split.prompt_tokens > tier.above]
    levels: list[PriceRecord | Tier] = [record, *reached]
    found: dict[str, Decimal | None] = {"storage": record.storage}
    for level in levels:
        thought = usage.reasoning and level.output_thinking is not None
        stated = {"input": level.input, "read": level.read, **level.writes}
        stated["output"] = level.output_thinking if thought else level.output
        found.update({key: rate for key, rate in stated.items() if rate is not None})
    return {key: rate for key, rate in found.items() if rate is not None}
