"""OpenAI's caching rules: up to GPT-5.5 a cache that finds shared beginnings, from GPT-5.6 on one with breakpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.cache.digest import Digest, fields_digest
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Break, BreakReason, Usage
from kvledger.providers import compatible
from kvledger.providers.editions import plain_name
from kvledger.providers.entries import EntryStore
from kvledger.providers.openai import beginnings, breakpoints
from kvledger.providers.openai.editions import Edition, edition_of, newest_edition, platform_named, rules
from kvledger.providers.openai.parts import read_parts
from kvledger.providers.openai.settings import KEY, RETENTION, TTL, breaking, read_settings
from kvledger.providers.openai.usage import read_usage
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import TokenCounter, Verdict


class OpenAIRules:
    """The rulebook of OpenAI's models on one platform: "openai" or "azure" (`ValueError` for another).

    The scope of a prompt is the organisation within a regional processing boundary, at Azure the subscription.
    """

    def __init__(self, platform: str = "openai") -> None:
        self.platform = platform_named(platform)
        self.provider = self.platform.name

    @property
    def models(self) -> tuple[str, ...]:
        """Names, and patterns with `*`, of the models that there are rules for."""
        return rules().models

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """Read a body of the API "chat" or "responses" (without `api`: the one whose field it has).

        See `Rulebook.prompt`. What a `previous_response_id` stands for must have been put in front of `input`.
        """
        api = api or ("responses" if "input" in body else "chat")
        if api not in ("chat", "responses"):
            raise InvalidRequestError(f"OpenAI's rules read bodies of the APIs chat and responses, not of {api!r}.")
        model = body.get("model")
        if not isinstance(model, str):
            raise InvalidRequestError("`model` is required and missing.", param="model")
        settings = read_settings(body, api, newest_edition(model), self.platform)
        lifetimes = rules().lifetimes
        parts = read_parts(body, counter, api, lifetimes=lifetimes, ttl=settings.get(TTL, next(iter(lifetimes))))
        return ProviderPrompt(self.provider, model, scope, parts, settings)

    def judge(
        self, prompt: ProviderPrompt, entries: EntryStore, at: float, *, earlier: ProviderPrompt | None = None
    ) -> Verdict:
        """See `Rulebook.judge`."""
        edition = edition_of(prompt.model, at)
        if edition.kind == "none":
            detail = f"OpenAI has no cached price for {prompt.model}: it is taken not to cache."
            return Verdict(beginnings.account(prompt, edition, 0, [Break(BreakReason.NOT_ASKED, 0, detail=detail)]))
        root = self._root(prompt, edition)
        if edition.kind == "breakpoints":
            return breakpoints.judge(prompt, root, edition, entries, at, earlier)
        return beginnings.judge(prompt, root, edition, entries, at, earlier, self._retention(prompt, edition))

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        """Read a usage object of Chat Completions, Responses or Realtime; see `Rulebook.usage`."""
        return read_usage(reported)

    def _root(self, prompt: ProviderPrompt, edition: Edition) -> Digest:
        """What entries must have in common besides the text: scope, model, settings, and from GPT-5.6 on the key."""
        values = {name: value for name, (_, value) in breaking(prompt, edition).items()}
        return fields_digest(
            self.provider,
            kind=edition.kind,
            scope=prompt.scope,
            model=plain_name(prompt.model),
            key=prompt.settings.get(KEY, "") if edition.kind == "breakpoints" else "",
            settings=compatible.canonical(values),
        )

    def _retention(self, prompt: ProviderPrompt, edition: Edition) -> str:
        asked = prompt.settings.get(RETENTION, "").strip('"')
        if asked in edition.retention:
            return asked
        return next(each for each in self.platform.default_retention if each in edition.retention)
