"""Money of many requests: rates are looked up once for all requests that share them, sums are exact."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from kvledger.audit.request import Request
from kvledger.ledger.account import Split, Usage
from kvledger.ledger.money import tidy
from kvledger.ledger.prices import Prices, Unknown
from kvledger.ledger.rates import Rates

UNITS = 18
"""Sums are kept as whole units of 10**-18 US dollars: a token at any published rate is a whole number of them."""

_TOKENS = 1 << 15
_SECONDS = 900
_PER_TOKEN = Decimal(10) ** (UNITS - 6)


def money(units: int) -> Decimal:
    """Units as US dollars."""
    return tidy(Decimal(units).scaleb(-UNITS))


class Costs:
    """What requests cost, in units; keeps the rates that it has looked up."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._rates: dict[tuple[object, ...], Rates | Unknown | None] = {}

    def cost(self, request: Request, usage: Usage) -> int | str:
        """The cost of `usage` billed to `request`, or in a sentence why it is unknown."""
        return self.cost_of(request.provider, request.model, usage, request.at)

    def cost_of(self, provider: str, model: str, usage: Usage, at: float) -> int | str:
        split = usage.split
        rates = self._look_up(provider, model, usage, at)
        if isinstance(rates, Unknown):
            return rates.reason
        total = split.fresh * _units(rates.input) + usage.output * _units(rates.output)
        if split.read:
            if rates.read is None:
                return f"no cache read price is known of {provider}'s {model}"
            total += split.read * _units(rates.read)
        for ttl, tokens in split.written.items():
            rate = rates.writes.get(ttl)
            if tokens and rate is None:
                return f"no {ttl} cache write price is known of {provider}'s {model}"
            total += tokens * _units(rate or Decimal(0))
        if usage.storage_token_seconds:
            bill = self._prices.bill(
                provider, model, Usage(Split(0), storage_token_seconds=usage.storage_token_seconds), at
            )
            if bill.total is None:
                return bill.unknown[0]
            total += int(bill.total.scaleb(UNITS))
        return total

    def lost(self, request: Request, tokens: int) -> int | str:
        """What `tokens` of a request cost more than if they had been read: at the rate that it paid for them, which is
        that of a write where it wrote as many."""
        usage = request.usage or Usage(Split(request.tokens, fresh=request.tokens))
        paid = next((ttl for ttl, count in usage.split.written.items() if count), "")
        plain = replace(usage, output=0, reasoning=0, storage_token_seconds=0)
        as_read = replace(plain, split=Split(tokens, read=tokens))
        as_paid = replace(plain, split=Split(tokens, 0, {paid: tokens}) if paid else Split(tokens, fresh=tokens))
        dear, cheap = self.cost(request, as_paid), self.cost(request, as_read)
        if isinstance(dear, str):
            return dear
        return cheap if isinstance(cheap, str) else dear - cheap

    def _look_up(self, provider: str, model: str, usage: Usage, at: float) -> Rates | Unknown:
        split = usage.split
        bucket = split.prompt_tokens // _TOKENS
        key = (
            provider,
            model,
            at // _SECONDS,  # prices change at quarters of an hour at the finest (peak hours)
            bucket,
            bool(split.read),
            tuple(split.written),
            bool(usage.reasoning),
            usage.service_tier,
            usage.region,
            usage.speed,
            usage.cache_mode,
        )
        if key not in self._rates:
            # A tier of prompt length may begin within the bucket: then each prompt is looked up by itself.
            ends = [self._at_length(provider, model, usage, at, bucket * _TOKENS + more) for more in (0, _TOKENS - 1)]
            self._rates[key] = ends[0] if ends[0] == ends[1] else None
        return self._rates[key] or self._prices.rates(provider, model, usage, at)

    def _at_length(self, provider: str, model: str, usage: Usage, at: float, tokens: int) -> Rates | Unknown:
        split = usage.split
        written = {ttl: 1 for ttl in split.written}
        read = int(bool(split.read))
        fresh = max(0, tokens - read - len(written))
        length = fresh + read + len(written)
        return self._prices.rates(provider, model, replace(usage, split=Split(length, read, written, fresh)), at)


def _units(rate: Decimal) -> int:
    """Units per token of a rate per million tokens."""
    whole = rate * _PER_TOKEN
    units = int(whole)
    assert units == whole, f"a rate of {rate} is finer than the units of money"
    return units
