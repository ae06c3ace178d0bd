"""What stands beside the prompt: cache options, the key, and the settings whose change loses the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.providers import compatible
from kvledger.providers.openai.editions import Edition, Platform, rules
from kvledger.providers.openai.parts import MARK
from kvledger.providers.prompt import ProviderPrompt

KEY = "prompt_cache_key"
MODE = "prompt_cache_options.mode"
TTL = "prompt_cache_options.ttl"
RETENTION = "prompt_cache_retention"

_NEWER = ("service_tier",)
"""Settings that only the newer cache is known to depend on."""

_TTLS = {"chat": ("30m",), "responses": ("30m", "12h")}
"""What `prompt_cache_options.ttl` may be; a breakpoint's own may be 12h in both."""


def read_settings(body: Mapping[str, Any], api: str, edition: Edition, platform: Platform) -> dict[str, str]:
    """Every field beside the prompt as JSON text, nested ones that matter under their dotted path; `MODE` and `TTL`
    with their defaults. Raises `InvalidRequestError` for options that the provider would refuse."""
    settings = compatible.settings(body)
    for names in rules().settings.values():
        for name in names:
            if "." in name and (value := _at(body, name)) is not None:
                settings[name] = compatible.canonical(value)
    if edition.kind == "breakpoints":
        mode, ttl = _options(body.get("prompt_cache_options"), api)
        return {**settings, MODE: mode, TTL: ttl}
    if platform.refuses_new_fields:
        _refuse_newer(body, edition)
    retention = body.get(RETENTION)
    if retention is not None and retention not in edition.retention:
        known = " or ".join(edition.retention) or "left out"
        raise InvalidRequestError(
            f"`{RETENTION}` must be {known} for this model, not {retention!r:.40}.", param=RETENTION
        )
    return settings


def breaking(prompt: ProviderPrompt, edition: Edition) -> dict[str, tuple[str, str]]:
    """Path and value (JSON text) of each setting that is no default and whose change loses the cache, by name."""
    found = {}
    for name, paths in rules().settings.items():
        if name in _NEWER and edition.kind != "breakpoints":
            continue
        for path in paths:
            value = prompt.settings.get(path)
            if value is not None and value not in rules().defaults.get(name, ()):
                found[name] = path, value
                break
    return found


def _options(options: Any, api: str) -> tuple[str, str]:
    if options is None:
        return "implicit", "30m"
    if not isinstance(options, Mapping):
        raise InvalidRequestError("`prompt_cache_options` must be an object.", param="prompt_cache_options")
    mode, ttl = options.get("mode") or "implicit", options.get("ttl") or "30m"
    if mode not in ("implicit", "explicit"):
        raise InvalidRequestError(f"`{MODE}` must be implicit or explicit, not {mode!r:.40}.", param=MODE)
    if ttl not in _TTLS[api]:
        raise InvalidRequestError(f"`{TTL}` must be {' or '.join(_TTLS[api])} here, not {ttl!r:.40}.", param=TTL)
    return mode, ttl


def _refuse_newer(body: Mapping[str, Any], edition: Edition) -> None:
    if body.get("prompt_cache_options") is not None:
        raise InvalidRequestError(
            "`prompt_cache_options` needs GPT-5.6 or later: leave it out.", param="prompt_cache_options"
        )
    for name in ("messages", "input"):
        items = body.get(name)
        for index, item in enumerate(items if isinstance(items, list) else ()):
            content = item.get("content") if isinstance(item, Mapping) else None
            for number, block in enumerate(content if isinstance(content, list) else ()):
                if isinstance(block, Mapping) and block.get(MARK) is not None:
                    path = f"{name}[{index}].content[{number}].{MARK}"
                    raise InvalidRequestError(f"`{path}` needs GPT-5.6 or later: leave it out.", param=path)


def _at(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
