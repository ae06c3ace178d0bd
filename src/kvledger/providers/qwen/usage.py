"""Qwen's usage object, in OpenAI's shape or DashScope's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.reported import compatible_usage, count, field

WRITES = "cache_creation_input_tokens"
FIVE_MINUTES = "cache_creation.ephemeral_5m_input_tokens"


def read_usage(reported: Mapping[str, Any]) -> Usage:
    """The input total includes what `prompt_tokens_details` says was read (`cached_tokens`) and written
    (`cache_creation_input_tokens`, all of it for five minutes). Only explicit caching reports the latter, if as 0."""
    name = "input_tokens_details" if field(reported, "input_tokens_details") is not None else "prompt_tokens_details"
    total, five = count(reported, f"{name}.{WRITES}"), count(reported, f"{name}.{FIVE_MINUTES}")
    if total is not None and five not in (None, total):
        raise InvalidRequestError(
            f"`{name}.{FIVE_MINUTES}` cannot be true: it says {five}, `{WRITES}` {total}.",
            param=f"{name}.{FIVE_MINUTES}",
        )
    written = total if total is not None else five
    marked = written is not None or field(reported, f"{name}.cache_type") == "ephemeral"
    usage = compatible_usage(reported, written={"5m": written or 0})
    return replace(usage, cache_mode="explicit" if marked else "implicit")
