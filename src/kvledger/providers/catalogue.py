"""All providers by name: whose rules judge a model, who reads a usage object, and what a misspelt name may have meant.

Rulebooks are imported when they are asked for: a name alone costs nothing.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.rulebook import Rulebook


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider by all its names. `models` matches the beginning of its own models' names, in lower case and without
    a vendor's prefix; a platform that serves another's models has none."""

    name: str
    load: Callable[[], Rulebook]
    aliases: tuple[str, ...] = ()
    models: str = ""


def provider_named(name: str) -> Provider:
    """The provider of that name or alias; raises `InvalidRequestError` with near names for an unknown one."""
    found = _by_name().get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), _by_name(), n=3, cutoff=0.6)
        instead = (
            f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(p.name for p in PROVIDERS)}."
        )
        raise InvalidRequestError(f"There is no provider `{name[:80]}`: {instead}", param="provider")
    return found


@cache
def rulebook(provider: str) -> Rulebook:
    """The rulebook of a provider, by any of its names, as it is without options; raises like `provider_named`."""
    return provider_named(provider).load()


def read_usage(provider: str, reported: Mapping[str, Any], *, api: str = "") -> Usage:
    """Read a raw usage object as `provider` (any of its names) reports it; see `Rulebook.usage`."""
    return rulebook(provider).usage(reported, api=api)


def provider_of(model: str) -> Provider:
    """The provider that a model's name alone points to; raises `InvalidRequestError` with near names if none."""
    name = model.strip().lower()
    if _BEDROCK.match(name):
        return provider_named("bedrock")
    vendor, _, plain = name.rpartition("/")
    if vendor == _FIREWORKS:
        return provider_named("fireworks")
    for provider in PROVIDERS:
        if provider.models and re.match(provider.models, plain):
            return provider
    if vendor in _by_name():
        return _by_name()[vendor]
    near = difflib.get_close_matches(plain, known_models(), n=3, cutoff=0.6)
    instead = f"did you mean {' or '.join(near)}?" if near else "write it as PROVIDER:MODEL."
    raise InvalidRequestError(f"No provider is known for a model `{model[:80]}`: {instead}", param="model")


def split_name(name: str) -> tuple[Provider, str]:
    """A model spelt `PROVIDER:MODEL`, or alone where its name says whose it is; raises like the two look-ups.

    A colon can be part of a model's name (Bedrock's `-v1:0`): it counts only behind the name of a provider, or where
    no provider is known for the whole.
    """
    before, colon, model = name.strip().partition(":")
    if colon and before.lower() in _by_name():
        if not model:
            raise InvalidRequestError(f"`{name[:80]}` names no model: write it as PROVIDER:MODEL.", param="model")
        return _by_name()[before.lower()], model
    try:
        return provider_of(name), name.strip()
    except InvalidRequestError:
        if colon:
            provider_named(before)  # the colon was meant: the error is about the provider
        raise


@cache
def known_models() -> tuple[str, ...]:
    """Every model that some rulebook names, without patterns."""
    names = (name for provider in PROVIDERS for name in getattr(rulebook(provider.name), "models", ()))
    return tuple(dict.fromkeys(name for name in names if "*" not in name))


def _anthropic(platform: str) -> Callable[[], Rulebook]:
    def load() -> Rulebook:
        from kvledger.providers.anthropic.rules import AnthropicRules  # noqa: PLC0415

        return AnthropicRules(platform)

    return load


def _openai(platform: str) -> Callable[[], Rulebook]:
    def load() -> Rulebook:
        from kvledger.providers.openai.rules import OpenAIRules  # noqa: PLC0415

        return OpenAIRules(platform)

    return load


def _gemini(platform: str) -> Callable[[], Rulebook]:
    def load() -> Rulebook:
        from kvledger.providers.gemini.rules import GeminiRules  # noqa: PLC0415

        return GeminiRules(platform)

    return load


def _deepseek() -> Rulebook:
    from kvledger.providers.deepseek.rules import DeepSeekRules  # noqa: PLC0415

    return DeepSeekRules()


def _qwen() -> Rulebook:
    from kvledger.providers.qwen.rules import QwenRules  # noqa: PLC0415

    return QwenRules()


def _kimi() -> Rulebook:
    from kvledger.providers.kimi.rules import KimiRules  # noqa: PLC0415

    return KimiRules()


def _automatic(name: str) -> Callable[[], Rulebook]:
    def load() -> Rulebook:
        from kvledger.providers.automatic import AutomaticRules  # noqa: PLC0415

        return AutomaticRules(name)

    return load


PROVIDERS = (
    Provider("anthropic", _anthropic("claude-api"), ("claude",), r"claude"),
    Provider("openai", _openai("openai"), (), r"(gpt-(?!oss)|chatgpt|o[134](-|$)|codex|text-embedding-)"),
    Provider("azure", _openai("azure"), ("azure-openai",)),
    Provider("gemini", _gemini("gemini-api"), ("google", "google-ai-studio"), r"(gemini|learnlm)-"),
    Provider("deepseek", _deepseek, ("deepseek-ai",), r"deepseek"),
    Provider("qwen", _qwen, ("dashscope", "alibaba", "model-studio"), r"(qwen|qwq|qvq|tongyi)"),
    Provider("kimi", _kimi, ("moonshot", "moonshotai"), r"(kimi|moonshot)-"),
    Provider("groq", _automatic("groq"), (), r"gpt-oss-"),
    Provider("mistral", _automatic("mistral"), ("mistralai",), r"(open-)?[a-z]+tral-"),
    Provider("xai", _automatic("xai"), ("x-ai", "grok"), r"grok-"),
    Provider("zai", _automatic("zai"), ("z.ai", "z-ai", "zhipu", "zhipuai"), r"glm-"),
    Provider("fireworks", _automatic("fireworks"), ("fireworks-ai",)),
    Provider("bedrock", _anthropic("bedrock"), ("aws", "amazon-bedrock")),
    Provider("vertex", _gemini("vertex"), ("vertex-ai", "google-vertex")),
    Provider("vertex-anthropic", _anthropic("google-cloud"), ("google-cloud",)),
)

_BEDROCK = re.compile(r"([a-z-]+\.)?anthropic\.claude")
_FIREWORKS = "accounts/fireworks/models"


@cache
def _by_name() -> dict[str, Provider]:
    return {name: provider for provider in PROVIDERS for name in (provider.name, *provider.aliases)}
