"""What a provider charges for a usage at a time: genai-prices with our own dated data (`prices.toml`) over it.

A tier of prompt length prices the whole request. A price that is not known is said to be unknown, with the reason; it
is never taken for zero and never guessed from another model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches

from kvledger.ledger import library
from kvledger.ledger.account import Split, Usage
from kvledger.ledger.bill import Bill, Line, LineKind, Statement
from kvledger.ledger.money import per_million, quotient
from kvledger.ledger.overlay import Factor, Overlay, ProviderRecord, load_overlay, matches, model_key
from kvledger.ledger.rates import Rates, Sheet

_STANDARD_TIERS = frozenset({"", "standard", "default", "auto", "on_demand"})
_NO_REGION = frozenset({"", "global", "not_available"})
_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why there is no price, in a sentence, and the names that come near to the one asked for."""

    reason: str
    near: tuple[str, ...] = ()


class Prices:
    """Looks prices up. Holds no state beside the data, so that one can serve every thread."""

    def __init__(self, overlay: Overlay | None = None) -> None:
        self._overlay = overlay or load_overlay()

    @property
    def edition(self) -> str:
        """Which data these prices are."""
        return f"{library.edition()}, kvledger {self._overlay.edition}"

    def rates(self, provider: str, model: str, usage: Usage, at: float) -> Rates | Unknown:
        """The rates of a request that began `at` (seconds since the Unix epoch) and used `usage`.

        `usage` decides the tier of prompt length, the service tier, region and speed, and whether the output thought.
        """
        known = self._overlay.provider(provider)
        if known is None:
            names = [name for record in self._overlay.providers for name in (record.name, *record.aliases)]
            return Unknown(f"no provider is called {provider}", _near(provider, names))
        vendor, slash, plain_name = model.strip().partition("/")
        model = plain_name if slash and vendor.lower() in (known.name, *known.aliases) else model.strip()
        when = datetime.fromtimestamp(at, UTC)
        entry = library.find_model(known, model)
        records = self._overlay.records(known, model, when)
        if entry is None and not records:
            return self._unknown_model(known, model, when)
        sheet = Sheet(entry, records, when, usage, known.default_ttl)
        if not sheet.is_complete:
            return Unknown(f"no price of {known.name}'s {model} is known for {when:%Y-%m-%d}")
        if known.peak and records and known.peak.holds(when) and when.date() >= known.peak.holidays_until:
            sheet.doubt("C")  # it may be a holiday
        unknown = self._adjust(sheet, known, model, when, usage)
        if unknown is not None:
            return unknown
        mode = "explicit" if usage.split.written_tokens else usage.cache_mode
        wanted = {ttl if ttl != "default" else known.default_ttl for ttl in usage.split.written}
        for rate in (*(("read",) if usage.split.read else ()), *sorted(wanted)):
            if fraction := self._overlay.fraction(known, model, rate, mode):
                sheet.derive(fraction)
        return sheet.rates()

    def bill(self, provider: str, model: str, usage: Usage, at: float) -> Bill:
        """The bill of a request that began `at` (seconds since the Unix epoch)."""
        rates = self.rates(provider, model, usage, at)
        if isinstance(rates, Unknown):
            return Bill(_lines(usage, None, rates.reason), self.edition, reason=rates.reason, near=rates.near)
        return Bill(_lines(usage, rates, f"is known of {provider}'s {model}"), self.edition, rates.confidence)

    def statement(self, provider: str, model: str, usage: Usage, at: float, best: Split | None = None) -> Statement:
        """The cost beside that of the same request without a cache, and with `best`, the split that the best placement
        of marks would have had (`ValueError` if that is of another prompt length)."""
        prompt = usage.split.prompt_tokens
        if best is not None and best.prompt_tokens != prompt:
            raise ValueError(f"the best placement splits {best.prompt_tokens} tokens, the prompt has {prompt}")
        uncached = replace(usage, split=Split(prompt, fresh=prompt), storage_token_seconds=0)
        return Statement(
            cost=self.bill(provider, model, usage, at),
            uncached=self.bill(provider, model, uncached, at),
            best=None if best is None else self.bill(provider, model, replace(usage, split=best), at),
        )

    def _unknown_model(self, known: ProviderRecord, model: str, at: datetime) -> Unknown:
        names = [*self._overlay.models(known), *library.model_names(known)]
        if any(model_key(model) == model_key(name) for name in names):
            return Unknown(f"no price of {known.name}'s {model} is known for {at:%Y-%m-%d}")
        return Unknown(f"{known.name} has no model {model} whose price is known", _near(model, names))

    def _adjust(self, sheet: Sheet, known: ProviderRecord, model: str, at: datetime, usage: Usage) -> Unknown | None:
        """Bring speed, service tier and region into the sheet; says which of them has no known price."""
        tier = "priority" if usage.service_tier == "fast" else usage.service_tier
        if usage.speed not in ("", "standard"):
            if tier == "batch":
                return Unknown(f"{known.name} offers no speed {usage.speed} inside a batch")
            if not sheet.vary({"speed": usage.speed}, None):
                return Unknown(f"no price of {known.name}'s {model} at speed {usage.speed} is known")
        if tier not in _STANDARD_TIERS:
            factor = next(
                (one for one in self._factors(known, "service_tier", tier) if matches(one.models, model)), None
            )
            context = {"processing": "batch"} if tier == "batch" else {"service_tier": tier}
            if not sheet.vary(context, factor):
                if factor is None:
                    return Unknown(f"no {tier} price of {known.name}'s {model} is known for {at:%Y-%m-%d}")
                sheet.multiply(factor)
        if usage.region not in _NO_REGION:
            factors = self._factors(known, "region", usage.region)
            if not factors:
                return Unknown(f"no price of {known.name} in region {usage.region} is known")
            # A model that no factor names costs the same in every region.
            for factor in factors:
                if matches(factor.models, model):
                    sheet.multiply(factor)
        return None

    def _factors(self, known: ProviderRecord, dimension: str, value: str) -> list[Factor]:
        return [
            factor
            for factor in self._overlay.factors
            if (factor.provider, factor.dimension) == (known.name, dimension) and factor.value in (value, "*")
        ]


def _lines(usage: Usage, rates: Rates | None, why: str) -> tuple[Line, ...]:
    """The lines of a bill. `why` is the reason where there are no rates, else the end of "no cache read price ..."."""

    def line(kind: LineKind, tokens: int, rate: Decimal | None, ttl: str = "") -> Line:
        if rate is not None:
            return Line(kind, tokens, rate, per_million(tokens, rate), ttl)
        what = f"{ttl} {kind.value}".strip().replace("_", " ")
        return Line(kind, tokens, None, None, ttl, f"no {what} price {why}" if rates else why)

    split = usage.split
    lines = [
        line(LineKind.INPUT, split.fresh, rates.input if rates else None),
        line(LineKind.CACHE_READ, split.read, rates.read if rates else None),
        *(
            line(LineKind.CACHE_WRITE, tokens, rates.writes.get(ttl) if rates else None, ttl)
            for ttl, tokens in sorted(split.written.items())
        ),
        line(LineKind.OUTPUT, usage.output, rates.output if rates else None),
    ]
    found = [one for one in lines if one.tokens]
    if seconds := usage.storage_token_seconds:
        stored = line(LineKind.STORAGE, seconds, rates.storage if rates else None)
        usd = None if stored.usd is None else quotient(stored.usd, _SECONDS_PER_HOUR)
        found.append(replace(stored, tokens=seconds // _SECONDS_PER_HOUR, usd=usd))
    return tuple(found)


def _near(name: str, names: list[str]) -> tuple[str, ...]:
    by_key = {model_key(known): known for known in names}
    return tuple(by_key[key] for key in get_close_matches(model_key(name), list(by_key), n=3, cutoff=0.6))
