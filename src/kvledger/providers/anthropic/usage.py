"""Raw usage objects of Claude: of the Messages API, of its streams, and of Bedrock's Converse.

The three counts of the prompt are disjoint: `input_tokens` is only what follows the last mark. All cache fields may be
missing or null, which is none. Source: the usage types of the anthropic SDK 2.14.0, docs.aws.amazon.com/bedrock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.reported import count, field, required

_LIFETIME = re.compile(r"ephemeral_(?P<ttl>\w+)_input_tokens")

_APART = frozenset(("compaction",))
"""Iterations that the top-level counts leave out, though they are billed. Those of an advisor are left out too, but run
on another model, at another price: they are no part of this request's usage."""


def read_usage(reported: Mapping[str, Any]) -> Usage:
    """The usage of one request. Raises `InvalidRequestError` naming the field that cannot be true.

    Writes without a split by lifetime count as 5 minute writes, which is how they are billed; so does what a stream
    wrote beyond the split that it began with. The tokens of a compaction, which the top level leaves out, are added.
    """
    if "inputTokens" in reported:
        return _converse(reported)
    split, output = _counts(reported, "")
    for index, step in enumerate(_list(reported, "iterations")):
        if isinstance(step, Mapping) and step.get("type") in _APART:
            more, answered = _counts(step, f"iterations[{index}].")
            split, output = _added(split, more), output + answered
    reasoning = count(reported, "output_tokens_details.thinking_tokens") or 0
    if reasoning > output:
        raise InvalidRequestError(
            f"`output_tokens_details.thinking_tokens` cannot be true: {reasoning} are more than the output's {output}.",
            param="output_tokens_details.thinking_tokens",
        )
    return Usage(
        split,
        output,
        reasoning,
        service_tier=_word(reported, "service_tier", "standard"),
        region=_word(reported, "inference_geo", ""),
        speed=_word(reported, "speed", "standard"),
    )


def merged(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One usage object from those of a stream, first to last (`message_start`, then each `message_delta`).

    Their counts are cumulative, so a later one replaces an earlier one; null and missing replace nothing, and the split
    by lifetime stays that of `message_start`, which alone has it.
    """
    total: dict[str, Any] = {}
    for snapshot in snapshots:
        total |= {name: value for name, value in snapshot.items() if value is not None}
    return total


def _counts(reported: Mapping[str, Any], path: str) -> tuple[Split, int]:
    try:
        fresh = required(reported, "input_tokens")
        read = count(reported, "cache_read_input_tokens") or 0
        written = _written(reported)
        output = required(reported, "output_tokens")
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), param=f"{path}{error.param}") from None
    return Split(fresh + read + sum(written.values()), read, written, fresh), output


def _written(reported: Mapping[str, Any]) -> dict[str, int]:
    by_lifetime: dict[str, int] = {}
    lifetimes = field(reported, "cache_creation") or {}
    if not isinstance(lifetimes, Mapping):
        raise InvalidRequestError("`cache_creation` must be an object.", param="cache_creation")
    for name in lifetimes:
        if (lifetime := _LIFETIME.fullmatch(name)) and (tokens := count(reported, f"cache_creation.{name}")):
            by_lifetime[lifetime["ttl"]] = tokens
    split = sum(by_lifetime.values())
    total = count(reported, "cache_creation_input_tokens")
    if total is None or total == split:
        return by_lifetime
    if total < split:
        raise InvalidRequestError(
            f"`cache_creation_input_tokens` cannot be true: {total} are less than the {split} of its lifetimes.",
            param="cache_creation_input_tokens",
        )
    return {**by_lifetime, "5m": by_lifetime.get("5m", 0) + total - split}


def _converse(reported: Mapping[str, Any]) -> Usage:
    fresh, output = required(reported, "inputTokens"), required(reported, "outputTokens")
    read = count(reported, "cacheReadInputTokens", "cacheReadInputTokenCount") or 0
    total = count(reported, "cacheWriteInputTokens", "cacheWriteInputTokenCount")
    written: dict[str, int] = {}
    for index, detail in enumerate(_list(reported, "cacheDetails")):
        path = f"cacheDetails[{index}]"
        if not isinstance(detail, Mapping) or not isinstance(detail.get("ttl"), str):
            raise InvalidRequestError(f"`{path}` must be an object with `ttl` and `inputTokens`.", param=path)
        written[detail["ttl"]] = written.get(detail["ttl"], 0) + required(detail, "inputTokens")
    split = sum(written.values())
    if total is not None and total < split:
        raise InvalidRequestError(
            f"`cacheWriteInputTokens` cannot be true: {total} are less than the {split} of its lifetimes.",
            param="cacheWriteInputTokens",
        )
    if total is not None and total > split:
        written["5m"] = written.get("5m", 0) + total - split
    written = {ttl: tokens for ttl, tokens in written.items() if tokens}
    return Usage(Split(fresh + read + sum(written.values()), read, written, fresh), output)


def _added(one: Split, other: Split) -> Split:
    lifetimes = one.written.keys() | other.written.keys()
    return Split(
        one.prompt_tokens + other.prompt_tokens,
        one.read + other.read,
        {ttl: one.written.get(ttl, 0) + other.written.get(ttl, 0) for ttl in sorted(lifetimes)},
        one.fresh + other.fresh,
    )


def _list(reported: Mapping[str, Any], name: str) -> list[Any]:
    value = field(reported, name)
    if value is not None and not isinstance(value, list):
        raise InvalidRequestError(f"`{name}` must be a list, not {value!r:.40}.", param=name)
    return value or []


def _word(reported: Mapping[str, Any], name: str, default: str) -> str:
    value = reported.get(name)
    return value if isinstance(value, str) and value else default
