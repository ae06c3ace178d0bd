"""Kimi's caching rules: automatic, with a lifetime that the request asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.automatic import AutomaticRules
from kvledger.providers.editions import Edition
from kvledger.providers.kimi.usage import read_usage
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import TokenCounter

LIFETIMES = {"5m": 300.0, "1h": 3600.0}
READ_ONLY = "none"


class KimiRules(AutomaticRules):
    """The lifetime is fixed when an entry is first written and renewed by hits. In Anthropic's format the root
    `cache_control` asks for caching; without it a request reads and does not write."""

    def __init__(self) -> None:
        super().__init__("kimi")

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """See `Rulebook.prompt`. Refuses `prompt_cache_breakpoint`, as Kimi does; marks on blocks are ignored."""
        if (path := _breakpoint(body)) is not None:
            raise InvalidRequestError(
                f"`{path}` is not supported by Kimi, which caches by itself: leave it out.", param=path
            )
        read = super().prompt(body, scope=scope, counter=counter, api=api)
        parts = tuple(replace(part, breakpoint=None) for part in read.parts)
        return replace(read, parts=parts, settings={**read.settings, "cache.ttl": _ttl(body, api)})

    def lifetime(self, prompt: ProviderPrompt, edition: Edition) -> tuple[str, float] | None:
        ttl = prompt.settings["cache.ttl"]
        return None if ttl == READ_ONLY else (ttl, LIFETIMES[ttl])

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        return super().usage(reported, api=api) if api == "messages" else read_usage(reported)


def _ttl(body: Mapping[str, Any], api: str) -> str:
    param = "cache_control" if api == "messages" else "prompt_cache_options"
    asked = body.get(param)
    if asked is None:
        return READ_ONLY if api == "messages" else "5m"
    if not isinstance(asked, Mapping):
        raise InvalidRequestError(f"`{param}` must be an object.", param=param)
    if param == "prompt_cache_options" and asked.get("mode", "implicit") != "implicit":
        raise InvalidRequestError(f"`{param}.mode` must be implicit.", param=f"{param}.mode")
    ttl = asked.get("ttl") or "5m"
    if ttl not in LIFETIMES:
        raise InvalidRequestError(f"`{param}.ttl` must be 5m or 1h, not {ttl!r:.40}.", param=f"{param}.ttl")
    return str(ttl)


def _breakpoint(body: Mapping[str, Any]) -> str | None:
    """Where a `prompt_cache_breakpoint` stands, if anywhere."""
    pending: list[tuple[str, Any]] = [(name, body.get(name)) for name in ("messages", "input", "tools")]
    while pending:
        path, value = pending.pop()
        if isinstance(value, list):
            pending += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, Mapping):
            if value.get("prompt_cache_breakpoint") is not None:
                return f"{path}.prompt_cache_breakpoint"
            pending += [(f"{path}.content", value.get("content"))]
    return None
