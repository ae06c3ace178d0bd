"""OpenAI's usage objects: Chat Completions, Responses and Realtime. All totals include what was cached and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.reported import count, field, inclusive, required

CACHED = (
    "prompt_tokens_details.cached_tokens",
    "input_tokens_details.cached_tokens",
    "input_token_details.cached_tokens",
)
WRITTEN = ("prompt_tokens_details.cache_write_tokens", "input_tokens_details.cache_write_tokens")
REASONING = ("completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens")
BY_TTL = "input_tokens_details.cache_write_tokens_details"

TIERS = {"flex": "flex", "batch": "batch", "priority": "priority", "fast": "priority", "ultrafast": "ultrafast"}
"""OpenAI's words for the service tier -> ours; all others are "standard"."""


def read_usage(reported: Mapping[str, Any]) -> Usage:
    """Read a usage object, with a `service_tier` among its fields if the caller knows it.

    Null and absent are zero. Writes whose lifetime is not told (Chat Completions never does) count as of 30 minutes,
    the default. Raises `InvalidRequestError` naming the field that cannot be true.
    """
    prompt = required(reported, "prompt_tokens", "input_tokens")
    output = count(reported, "completion_tokens", "output_tokens") or 0  # embeddings have none
    read, written = count(reported, *CACHED) or 0, count(reported, *WRITTEN) or 0
    split = inclusive(prompt, read, _by_ttl(reported, written), _name(reported, CACHED))
    reasoning = count(reported, *REASONING) or 0
    if reasoning > output:
        raise _untrue(_name(reported, REASONING), f"{reasoning} are more than the output's {output}")
    total = count(reported, "total_tokens")
    if total is not None and total != prompt + output:
        raise _untrue("total_tokens", f"{prompt} of the prompt and {output} of the output are not {total}")
    tier = field(reported, "service_tier")
    return Usage(split, output, reasoning, service_tier=TIERS.get(tier, "standard") if tier else "standard")


def _by_ttl(reported: Mapping[str, Any], written: int) -> dict[str, int]:
    split = {ttl: count(reported, f"{BY_TTL}.ttl_{ttl}_tokens") for ttl in ("30m", "12h")}
    if all(tokens is None for tokens in split.values()):
        return {"30m": written}
    told = {ttl: tokens or 0 for ttl, tokens in split.items()}
    if sum(told.values()) != written:
        raise _untrue(BY_TTL, f"{' and '.join(map(str, told.values()))} are not the {written} written")
    return told


def _name(reported: Mapping[str, Any], paths: tuple[str, ...]) -> str:
    return next((path for path in paths if field(reported, path) is not None), paths[0])


def _untrue(param: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"`{param}` cannot be true: {why}.", param=param)
