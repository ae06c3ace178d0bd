"""Kimi's usage object, with the split of writes that only the response headers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.reported import CACHED, compatible_usage, count

WRITES = "prompt_tokens_details.cache_write_tokens"
HEADER = "msh-usage-cache-write-tokens-"


def read_usage(reported: Mapping[str, Any]) -> Usage:
    """`prompt_tokens_details` with `cached_tokens` and `cache_write_tokens`, or the old `cached_tokens` beside them.

    The response headers `Msh-Usage-Cache-Write-Tokens-5m` and `-1h` (counts, as numbers or as text) may be put among
    the fields; without them writes count as of 5 minutes, the default.
    """
    read = count(reported, *CACHED, "cached_tokens") or 0
    total = count(reported, WRITES, "input_tokens_details.cache_write_tokens") or 0
    headers = {name.lower(): value for name, value in reported.items() if name.lower().startswith(HEADER)}
    split = {ttl: _header(headers.get(HEADER + ttl), HEADER + ttl) for ttl in ("5m", "1h")}
    if not any(split.values()):
        split = {"5m": total}
    elif total and sum(split.values()) != total:
        raise InvalidRequestError(
            f"`{WRITES}` cannot be true: it says {total}, the headers {sum(split.values())}.", param=WRITES
        )
    return compatible_usage(reported, read=read, written=split)


def _header(value: Any, name: str) -> int:
    text = str(value) if value is not None else "0"
    if not (text.isascii() and text.isdecimal()):
        raise InvalidRequestError(f"`{name}` must be a count of tokens, not {text[:40]!r}.", param=name)
    return int(text)
