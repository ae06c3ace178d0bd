"""The shortest prefix that a provider caches, found by asking its rulebook."""

from __future__ import annotations

from functools import lru_cache

from kvledger.audit.request import Request
from kvledger.ledger.account import BreakReason
from kvledger.providers.catalogue import rulebook
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.prompt import Breakpoint, Level, Part, ProviderPrompt

_DAY = 86_400.0
_MOST = 1 << 17


def minimum_of(request: Request) -> int:
    """Tokens, for the request's provider and model on its day; 0 where every length is cached. There must be a prompt.

    Raises `InvalidRequestError` for a model without rules.
    """
    assert request.prompt is not None
    ttl = next((part.breakpoint.ttl for part in request.prompt.parts if part.breakpoint), "")
    if not ttl:
        ttl = "30m" if request.provider in ("openai", "azure") else "5m"
    return _minimum(request.provider, request.prompt.model, ttl, request.at // _DAY)


@lru_cache(maxsize=1024)
def _minimum(provider: str, model: str, ttl: str, day: float) -> int:
    rules, low, high = rulebook(provider), 0, _MOST
    while low < high:
        middle = (low + high) // 2
        part = Part("messages[0]", Level.MESSAGES, "text", "x", middle, "user", Breakpoint(ttl))
        prompt = ProviderPrompt(provider, model, "", (part,), {"prompt_cache_options.mode": "explicit"})
        breaks = rules.judge(prompt, MemoryEntries(), day * _DAY).account.breaks
        if any(each.reason is BreakReason.BELOW_MINIMUM for each in breaks):
            low = middle + 1
        else:
            high = middle
    return low
