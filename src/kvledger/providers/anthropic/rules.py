"""Anthropic's caching rules: what a request reads, what it writes and under which lifetime, what it pays in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Break, Split, Usage
from kvledger.providers.anthropic.breaks import Judged, find_breaks, find_changes
from kvledger.providers.anthropic.editions import (
    edition,
    model_named,
    platform_named,
    rules,
    takes_automatic,
)
from kvledger.providers.anthropic.lookup import Chain, Hits, chain, look_back
from kvledger.providers.anthropic.marks import place_marks, read_mark
from kvledger.providers.anthropic.parts import read_parts
from kvledger.providers.anthropic.prewarm import check_prewarm
from kvledger.providers.anthropic.settings import read_settings
from kvledger.providers.anthropic.usage import read_usage
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import TokenCounter, Verdict


class AnthropicRules:
    """The rulebook of Claude on one platform: "claude-api", or another of `rules.toml` (`ValueError` if it has none).

    The scope of a prompt is what the platform isolates by: the workspace on the Claude API, Claude Platform on AWS and
    Foundry, the organisation on Bedrock and Google Cloud.
    """

    def __init__(self, platform: str = "claude-api") -> None:
        self.platform = platform_named(platform)
        self.provider = self.platform.provider

    @property
    def models(self) -> tuple[str, ...]:
        """The models there are rules for, newest first, by the names of the Claude API."""
        return tuple(model.name for model in rules().model)

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """Read the body of a Messages request; see `Rulebook.prompt`."""
        if api not in ("", "messages", "count_tokens"):
            raise InvalidRequestError(f"Anthropic's rules read bodies of the messages API, not of {api!r}.")
        name = body.get("model")
        if not isinstance(name, str):
            raise InvalidRequestError("`model` is required and missing.", param="model")
        model = model_named(name)
        automatic = read_mark(body.get("cache_control"), "cache_control")
        if automatic and not takes_automatic(model, self.platform):
            raise InvalidRequestError(
                f"The top-level `cache_control` is not accepted for {model.name} on {self.platform.name}: mark blocks.",
                param="cache_control",
            )
        check_prewarm(body)
        parts = read_parts(body, counter.count, strips_thinking=model.strips_thinking)
        if not (model.system_messages and self.platform.system_messages):
            for part in parts:
                if part.role == "system" and part.path.startswith("messages"):
                    raise InvalidRequestError(
                        f"`{part.path}` stands in a message with role system, which {model.name} does not take on"
                        f" {self.platform.name}: use the top-level `system`.",
                        param=part.path,
                    )
        parts = place_marks(parts, automatic)
        return ProviderPrompt(self.provider, name, scope, parts, read_settings(body, parts))

    def judge(
        self, prompt: ProviderPrompt, entries: EntryStore, at: float, *, earlier: ProviderPrompt | None = None
    ) -> Verdict:
        """See `Rulebook.judge`. A mark reads what it finds and writes at its own place what it does not find there."""
        this = self._judged(prompt, at)
        hits = look_back(this.chain, entries, at, this.edition.positions)
        breaks = find_breaks(this, hits, entries, at, self._judged(earlier, at) if earlier else None)
        account = Account(
            split=_split(prompt, this.chain, hits),
            breaks=tuple(found.shown for found in breaks),
            rule=this.edition.rule,
            certain=this.edition.certain and all(found.certain for found in breaks) and not _ends_in_system(this),
        )
        return Verdict(
            account,
            renewed=tuple(entry.refreshed(at) for entry in hits.entries),
            written=tuple(_entry(prompt, this.chain, mark, at) for mark in this.chain.marks if mark not in hits.own),
        )

    def changes(self, prompt: ProviderPrompt, earlier: ProviderPrompt, at: float) -> list[Break]:
        """What keeps `prompt`, sent at `at`, from reading what `earlier` wrote, whatever has become of that since."""
        return find_changes(self._judged(earlier, at), self._judged(prompt, at))

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        """Read a usage object of the Messages API or of Bedrock's Converse; see `Rulebook.usage`."""
        return read_usage(reported)

    def _judged(self, prompt: ProviderPrompt, at: float) -> Judged:
        model = model_named(prompt.model)
        here = edition(model, self.platform, at)
        return Judged(prompt, model, here, chain(prompt, model, self.platform, here))


def _split(prompt: ProviderPrompt, chain: Chain, hits: Hits) -> Split:
    """By the documented positions: A is the end of the best hit, B of the last 1 hour mark behind it (else A), C of the
    last mark. A is read, B - A written for an hour, C - B for five minutes, the rest paid in full."""
    total = prompt.tokens
    a = chain.up_to(hits.best)
    hour = [mark for mark in chain.marks if mark > hits.best and _ttl(prompt, mark) == "1h"]
    b = chain.up_to(hour[-1]) if hour else a
    c = max(b, chain.up_to(chain.reach))
    written = {"1h": b - a, "5m": c - b}
    return Split(total, a, {ttl: tokens for ttl, tokens in written.items() if tokens}, total - c)


def _entry(prompt: ProviderPrompt, chain: Chain, mark: int, at: float) -> Entry:
    ttl = _ttl(prompt, mark)
    lifetime = float(rules().marks.lifetimes[ttl])
    return Entry(chain.digests[mark], chain.tokens[mark], ttl, lifetime, at, at, at + lifetime)


def _ttl(prompt: ProviderPrompt, mark: int) -> str:
    placed = prompt.parts[mark].breakpoint
    assert placed is not None
    return placed.ttl


def _ends_in_system(this: Judged) -> bool:
    """Whether the last mark stands on a system message at the end: whether that is ever matched is in doubt."""
    last = this.chain.reach
    parts = this.prompt.parts
    return last >= 0 and last == len(parts) - 1 and parts[last].role == "system" and parts[last].path.startswith("mess")
