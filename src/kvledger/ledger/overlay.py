"""Our own price data (`prices.toml`): what it can say, and how a record is found for a model at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

import msgspec

Confidence = Literal["A", "B", "C"]
"""A official documentation, B a dated third party that quotes it, C inferred or conflicting."""

_SNAPSHOT = re.compile(r"(-\d{8}|-\d{4}-\d{2}-\d{2}|@\d{8}|-latest)$")


@dataclass(frozen=True, slots=True)
class Tier:
    """Rates of a whole request whose prompt has more than `above` tokens. What is None stays as in the record."""

    above: int
    input: Decimal | None = None
    read: Decimal | None = None
    output: Decimal | None = None
    output_thinking: Decimal | None = None
    writes: Mapping[str, Decimal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PriceRecord:
    """Dated rates of some models, in US dollars per million tokens (`storage`: and hour). None says nothing.

    `until` is exclusive; `when` limits the record to a provider's peak hours or to all others. `output_thinking` is the
    price of the whole output of a request that reasoned.
    """

    provider: str
    models: tuple[str, ...]
    confidence: Confidence
    source: str
    since: datetime | None = None
    until: datetime | None = None
    when: Literal["peak", "off_peak"] | None = None
    input: Decimal | None = None
    read: Decimal | None = None
    output: Decimal | None = None
    output_thinking: Decimal | None = None
    storage: Decimal | None = None
    writes: Mapping[str, Decimal] = field(default_factory=dict)
    tiers: tuple[Tier, ...] = ()


@dataclass(frozen=True, slots=True)
class Fraction:
    """A rate ("read", or a lifetime of a write) that is published as a part of the input price."""

    provider: str
    rate: str
    of_input: Decimal
    confidence: Confidence
    source: str
    models: tuple[str, ...] = ("*",)
    cache: str = ""


@dataclass(frozen=True, slots=True)
class Factor:
    """What a service tier or a region multiplies every rate with, except those it `keeps`."""

    provider: str
    dimension: Literal["service_tier", "region"]
    value: str
    factor: Decimal
    confidence: Confidence
    source: str
    models: tuple[str, ...] = ("*",)
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peak:
    """Hours of the day (UTC, end excluded) with another price, from `since` on; from `weekdays_since` on only from
    Monday to Friday outside `holidays`, by the calendar `utc_offset_hours` ahead. Holidays are known until
    `holidays_until`."""

    hours: tuple[tuple[str, str], ...]
    since: datetime
    weekdays_since: datetime
    utc_offset_hours: int
    holidays: frozenset[date]
    holidays_until: date

    def holds(self, at: datetime) -> bool:
        """Whether `at` (UTC) is in peak hours."""
        now = at.time()
        if at < self.since or not any(
            time.fromisoformat(start) <= now < time.fromisoformat(end) for start, end in self.hours
        ):
            return False
        day = (at + timedelta(hours=self.utc_offset_hours)).date()
        return at < self.weekdays_since or (day.weekday() < 5 and day not in self.holidays)


@dataclass(frozen=True, slots=True)
class ProviderRecord:
    """A provider under its names: here, elsewhere (`aliases`), and in genai-prices (`library`, None: not there), where
    its models' names may begin with `prefix`."""

    name: str
    aliases: tuple[str, ...] = ()
    library: str | None = None
    prefix: str = ""
    default_ttl: str = ""
    peak: Peak | None = None


class Overlay(msgspec.Struct, frozen=True):
    """The whole file."""

    edition: str
    providers: tuple[ProviderRecord, ...]
    prices: tuple[PriceRecord, ...]
    fractions: tuple[Fraction, ...]
    factors: tuple[Factor, ...]

    def provider(self, name: str) -> ProviderRecord | None:
        name = name.strip().lower()
        return next((known for known in self.providers if name == known.name or name in known.aliases), None)

    def records(self, provider: ProviderRecord, model: str, at: datetime) -> list[PriceRecord]:
        """The records that hold for a model at a time, in the order of the file: a later one wins."""
        wanted = {model_key(model), model_key(_SNAPSHOT.sub("", model.lower()))}
        when = "peak" if provider.peak and provider.peak.holds(at) else "off_peak"
        return [
            record
            for record in self.prices
            if record.provider == provider.name
            and not wanted.isdisjoint(map(model_key, record.models))
            and (record.since is None or record.since <= at)
            and (record.until is None or at < record.until)
            and record.when in (None, when)
        ]

    def fraction(self, provider: ProviderRecord, model: str, rate: str, cache_mode: str) -> Fraction | None:
        """What part of the input price a rate is, where the provider publishes it so."""
        for fraction in self.fractions:
            fits = (fraction.provider, fraction.rate) == (provider.name, rate) and fraction.cache in ("", cache_mode)
            if fits and matches(fraction.models, model):
                return fraction
        return None

    def models(self, provider: ProviderRecord) -> list[str]:
        return [model for record in self.prices if record.provider == provider.name for model in record.models]


@lru_cache(maxsize=4096)
def model_key(model: str) -> str:
    """A model's name for comparison: "Claude-Sonnet-5.5" and "claude-sonnet-5-5" are one."""
    return re.sub(r"(?<=\d)\.(?=\d)", "-", model.lower())


def matches(patterns: tuple[str, ...], model: str) -> bool:
    """Whether a model's name fits one of the patterns (`*` stands for anything)."""
    return any(fnmatchcase(model_key(model), model_key(pattern)) for pattern in patterns)


@cache
def load_overlay() -> Overlay:
    """The file that comes with the program."""
    return msgspec.toml.decode(files("kvledger.ledger").joinpath("prices.toml").read_bytes(), type=Overlay)
