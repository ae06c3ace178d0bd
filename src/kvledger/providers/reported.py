"""Reading token counts out of raw usage objects: absent and null are none, anything but a count is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage


def field(reported: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, None where any of it is absent; raises where something else than an object stands."""
    value: Any = reported
    walked = ""
    for name in path.split("."):
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InvalidRequestError(f"`{walked}` must be an object, not {value!r:.40}.", param=walked)
        walked = f"{walked}.{name}" if walked else name
        value = value.get(name)
    return value


def count(reported: Mapping[str, Any], *paths: str) -> int | None:
    """The count at the first of `paths` that has one, or None."""
    for path in paths:
        value = field(reported, path)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidRequestError(f"`{path}` must be a count of tokens, not {value!r:.40}.", param=path)
        return value
    return None


def required(reported: Mapping[str, Any], *paths: str) -> int:
    """The count at the first of `paths` that has one; raises if none has."""
    found = count(reported, *paths)
    if found is None:
        raise InvalidRequestError(f"`{paths[0]}` is missing: this is no usage object of this provider.", param=paths[0])
    return found


def inclusive(total: int, read: int, written: Mapping[str, int], param: str) -> Split:
    """The split of a prompt whose reported `total` includes what was read and written; raises, naming `param`, where
    those are more than the whole."""
    parts = {ttl: tokens for ttl, tokens in written.items() if tokens}
    fresh = total - read - sum(parts.values())
    if fresh < 0:
        raise InvalidRequestError(
            f"`{param}` cannot be true: {read} tokens read and {sum(parts.values())} written are more than"
            f" the prompt's {total}.",
            param=param,
        )
    return Split(total, read, parts, fresh)


def compatible_usage(reported: Mapping[str, Any], *, read: int | None = None, written: Mapping[str, int] = {}) -> Usage:
    """A usage object in OpenAI's shape, of Chat Completions or Responses, from a provider that took it over.

    `read` and `written` replace what the shape itself says of them. Reasoning tokens are part of the output; where the
    reported total shows that a provider counts them beside it (xAI does), they are added.
    """
    prompt = required(reported, "prompt_tokens", "input_tokens")
    output = required(reported, "completion_tokens", "output_tokens")
    reasoning = (
        count(reported, "completion_tokens_details.reasoning_tokens", "output_tokens_details.reasoning_tokens") or 0
    )
    total = count(reported, "total_tokens")
    if reasoning and total == prompt + output + reasoning:
        output += reasoning
    if reasoning > output:
        raise InvalidRequestError(
            f"`reasoning_tokens` cannot be true: {reasoning} are more than the output's {output}.",
            param="completion_tokens_details.reasoning_tokens",
        )
    if read is None:
        read = count(reported, *CACHED) or 0
    tier = field(reported, "service_tier")
    return Usage(
        inclusive(prompt, read, written, CACHED[0]),
        output,
        reasoning,
        service_tier=tier if isinstance(tier, str) and tier not in ("", "default", "auto", "on_demand") else "standard",
    )


CACHED = ("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens")
