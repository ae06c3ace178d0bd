"""`usageMetadata`: Google's counts of a request, read and written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.gemini.fields import camel_case
from kvledger.providers.reported import count, field, inclusive, required

CACHED = "cachedContentTokenCount"
TIERS = {"ON_DEMAND_PRIORITY": "priority", "ON_DEMAND_FLEX": "flex"}
"""`trafficType` -> the service tier; everything else is standard."""


def read_usage(reported: Mapping[str, Any]) -> Usage:
    """Read `usageMetadata` of generateContent, or the `usage` of the Interactions API.

    The prompt's count includes what was cached. Beside it stand the tokens of tool results that the API fetched itself
    (`toolUsePromptTokenCount`, more input), and beside the candidates' the thoughts' (more output).
    """
    reported = camel_case(reported)
    reported = field(reported, "usageMetadata") or reported
    if "totalInputTokens" in reported:
        return _interaction(reported)
    prompt = required(reported, "promptTokenCount")
    fetched = count(reported, "toolUsePromptTokenCount") or 0
    thoughts = count(reported, "thoughtsTokenCount") or 0
    output = (count(reported, "candidatesTokenCount") or 0) + thoughts
    total = count(reported, "totalTokenCount")
    if total is not None and total < prompt:
        raise InvalidRequestError(
            f"`totalTokenCount` cannot be true: {total} is less than the prompt's {prompt}.", param="totalTokenCount"
        )
    split = inclusive(prompt, count(reported, CACHED) or 0, {}, CACHED)
    return Usage(
        Split(prompt + fetched, split.read, {}, split.fresh + fetched),
        output,
        thoughts,
        service_tier=TIERS.get(str(field(reported, "trafficType")), "standard"),
    )


def usage_metadata(usage: Usage) -> dict[str, Any]:
    """Write `usageMetadata`. As Google does, what is none is left out, except the counts that every answer has."""
    split = usage.split
    told: dict[str, Any] = {"promptTokenCount": split.prompt_tokens}
    if split.read:
        told[CACHED] = split.read
    told["candidatesTokenCount"] = usage.output - usage.reasoning
    if usage.reasoning:
        told["thoughtsTokenCount"] = usage.reasoning
    told["totalTokenCount"] = split.prompt_tokens + usage.output
    told["promptTokensDetails"] = [{"modality": "TEXT", "tokenCount": split.prompt_tokens}]
    if split.read:
        told["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": split.read}]
    return told


def _interaction(reported: Mapping[str, Any]) -> Usage:
    prompt = required(reported, "totalInputTokens")
    fetched = count(reported, "totalToolUseTokens") or 0
    thoughts = count(reported, "totalThoughtTokens") or 0
    split = inclusive(prompt, count(reported, "totalCachedTokens") or 0, {}, "totalCachedTokens")
    return Usage(
        Split(prompt + fetched, split.read, {}, split.fresh + fetched),
        (count(reported, "totalOutputTokens") or 0) + thoughts,
        thoughts,
    )
