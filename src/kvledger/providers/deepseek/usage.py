"""DeepSeek's usage object: hits and misses that make up the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.reported import CACHED, compatible_usage, count


def read_usage(reported: Mapping[str, Any]) -> Usage:
    """`prompt_cache_hit_tokens` and `prompt_cache_miss_tokens`, which sum to `prompt_tokens`, or the newer
    `prompt_tokens_details.cached_tokens`; where both are given they must agree."""
    hit, miss = count(reported, "prompt_cache_hit_tokens"), count(reported, "prompt_cache_miss_tokens")
    if hit is None:
        return compatible_usage(reported)
    prompt = count(reported, "prompt_tokens")
    if miss is not None and prompt is None:
        reported = {**reported, "prompt_tokens": hit + miss}
    elif miss is not None and hit + miss != prompt:
        raise InvalidRequestError(
            f"`prompt_cache_miss_tokens` cannot be true: {hit} hit and {miss} missed are not the prompt's {prompt}.",
            param="prompt_cache_miss_tokens",
        )
    cached = count(reported, CACHED[0])
    if cached not in (None, hit):
        raise InvalidRequestError(
            f"`{CACHED[0]}` cannot be true: it says {cached}, `prompt_cache_hit_tokens` {hit}.", param=CACHED[0]
        )
    return compatible_usage(reported, read=hit)
