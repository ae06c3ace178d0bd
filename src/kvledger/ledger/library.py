"""The price data of genai-prices, as it comes with the package: nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING

from kvledger.ledger.overlay import Confidence, ProviderRecord, model_key

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelInfo, ModelPrice

CONFIDENCE: Confidence = "B"
"""Its data quotes the providers' pages."""


@cache
def edition() -> str:
    """The package and its version, which is that of the data."""
    return f"genai-prices {version('genai-prices')}"


@cache
def _snapshot() -> DataSnapshot:
    from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 (takes half a second)

    return get_snapshot()


def find_model(provider: ProviderRecord, model: str) -> ModelInfo | None:
    """The library's entry for a model, if it has one."""
    if provider.library is None:
        return None
    for name in dict.fromkeys((model, model_key(model), provider.prefix + model)):
        try:
            return _snapshot().find_provider_model(name, None, provider.library, None)[1]
        except LookupError:
            continue
    return None


def model_names(provider: ProviderRecord) -> list[str]:
    """The models of a provider that the library knows."""
    if provider.library is None:
        return []
    return [model.id for model in _snapshot().find_provider(None, provider.library, None).models]


def variant(model: ModelInfo | None, context: Mapping[str, str], at: datetime) -> ModelPrice | None:
    """The rates that the library has for a context ("processing": "batch") at a time; those it does not name stay."""
    for entry in (model.price_variants if model else None) or ():
        if entry.when == context and (entry.constraint is None or entry.constraint.active(at)):
            return entry.prices
    return None


def rates_of(price: ModelPrice, prompt_tokens: int, default_ttl: str) -> dict[str, Decimal]:
    """Rates by the keys of `rates.Sheet`. The library's plain write price is that of the default lifetime."""
    from genai_prices.types import TieredPrices  # noqa: PLC0415

    keys = {
        "input_mtok": "input",
        "cache_read_mtok": "read",
        "cache_write_mtok": default_ttl or "default",
        "cache_write_5m_mtok": "5m",
        "cache_write_1h_mtok": "1h",
        "output_mtok": "output",
    }
    found: dict[str, Decimal] = {}
    for name, key in keys.items():
        value = getattr(price, name)
        if isinstance(value, TieredPrices):
            reached = [tier.price for tier in value.tiers if prompt_tokens > tier.start]
            value = reached[-1] if reached else value.base
        if value is not None:
            found[key] = value
    return found
