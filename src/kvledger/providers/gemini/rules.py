"""Gemini's caching rules: implicit, found by itself; explicit, as a cached content that the request names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from kvledger.cache.digest import DIGEST_BYTES, fields_digest
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Break, BreakReason, Split, Usage
from kvledger.providers import compatible
from kvledger.providers.automatic import AutomaticRules
from kvledger.providers.decode import check_depth
from kvledger.providers.editions import Edition, edition_of
from kvledger.providers.entries import EntryStore
from kvledger.providers.gemini.contents import data_of
from kvledger.providers.gemini.fields import camel_case, objects
from kvledger.providers.gemini.usage import read_usage
from kvledger.providers.prompt import Breakpoint, Level, Part, ProviderPrompt
from kvledger.providers.rulebook import TokenCounter, Verdict

PLATFORMS = {"gemini-api": "", "vertex": "vertex"}
PROMPT = frozenset(("model", "contents", "systemInstruction", "tools"))


class GeminiRules(AutomaticRules):
    """The rulebook of Gemini on one platform: "gemini-api" or "vertex" (`ValueError` for another).

    The real implicit cache is best effort: it often fails to serve what it should have. Here it serves all, unless
    `drop` (0 to 1, else `ValueError`) says what share of hits is dropped. Which ones depends on `seed`, the prefix and
    the time alone: the same run drops the same hits. A cached content is always served until it expires.
    """

    def __init__(self, platform: str = "gemini-api", *, drop: float = 0.0, seed: int = 0) -> None:
        if platform not in PLATFORMS:
            raise ValueError(f"{platform!r} is no platform that serves Gemini: use one of {', '.join(PLATFORMS)}")
        if not 0 <= drop <= 1:
            raise ValueError(f"a share of {drop} of all hits cannot be dropped: give 0 to 1")
        super().__init__("gemini")
        self.platform, self.drop, self.seed = platform, drop, seed

    def edition(self, model: str, at: float) -> Edition:
        return edition_of(self.rules, model, at, variant=PLATFORMS[self.platform])

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """See `Rulebook.prompt`. The content that `caches.with_cache` put in place of a cache's name comes first."""
        if api not in ("", "generate"):
            raise InvalidRequestError(f"Gemini's rules read bodies of the generate API, not of {api!r}.")
        for name, value in body.items():
            check_depth(value, name)
        body = camel_case(body)
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise InvalidRequestError("`model` is required and missing.", param="model")
        parts, settings = list(_parts(body, "", counter)), {}
        cached = body.get("cachedContent")
        if isinstance(cached, Mapping):
            stored = list(_parts(cached, "cachedContent.", counter))
            if stored:
                stored[-1] = replace(stored[-1], breakpoint=Breakpoint(str(cached["expireTime"])))
            parts, settings = [*stored, *parts], {"cachedContent": compatible.canonical(cached["name"])}
        beside = {name: value for name, value in body.items() if name not in PROMPT}
        settings = {**compatible.settings(beside), **settings}
        return ProviderPrompt(self.provider, model.removeprefix("models/"), scope, tuple(parts), settings)

    def judge(
        self, prompt: ProviderPrompt, entries: EntryStore, at: float, *, earlier: ProviderPrompt | None = None
    ) -> Verdict:
        """See `Rulebook.judge`. A request with a cached content reads that and has nothing to do with the implicit
        cache; if only its name is known (a log), nothing can be said of what it reads, and the account says so."""
        if "cachedContent" in prompt.settings:
            return Verdict(self._explicit(prompt, at))
        verdict = super().judge(prompt, entries, at, earlier=earlier)
        read = verdict.account.split.read
        if not read or not self._drops(prompt, at):
            return verdict
        dropped = Break(BreakReason.DROPPED, read, detail=f"{self.drop:.0%} of all hits are dropped on purpose.")
        why = (dropped, *verdict.account.breaks)
        account = self.account(prompt, self.edition(prompt.model, at), 0, why)
        return Verdict(account, written=verdict.written)

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        """Read `usageMetadata`, or the usage of the Interactions API; see `Rulebook.usage`."""
        return read_usage(reported)

    def _explicit(self, prompt: ProviderPrompt, at: float) -> Account:
        edition, total = self.edition(prompt.model, at), prompt.tokens
        rule = f"{self.provider}/explicit/{edition.name}"
        last = next((i for i, part in enumerate(prompt.parts) if part.breakpoint), None)
        if last is None:
            return Account(Split(total, fresh=total), (), rule, certain=False)
        held = sum(part.tokens for part in prompt.parts[: last + 1])
        mark = prompt.parts[last].breakpoint
        assert mark is not None
        if at > datetime.fromisoformat(mark.ttl).timestamp():
            detail = f"The cached content expired at {mark.ttl}; a hit does not renew it."
            return Account(Split(total, fresh=total), (Break(BreakReason.EXPIRED, held, detail=detail),), rule)
        return Account(Split(total, held, fresh=total - held), (), rule)

    def _drops(self, prompt: ProviderPrompt, at: float) -> bool:
        """Draw a number from 0 to 1 out of what a run has in common with its repetition."""
        end = self.stops(prompt)[-1].digest.hex()
        drawn = fields_digest("dropped", seed=str(self.seed), prefix=end, at=repr(at))
        return int.from_bytes(drawn, "big") / float(2 ** (8 * DIGEST_BYTES)) < self.drop


def _parts(body: Mapping[str, Any], lead: str, counter: TokenCounter) -> Iterator[Part]:
    for tool, path in objects(body.get("tools"), f"{lead}tools"):
        functions = list(objects(tool.get("functionDeclarations"), f"{path}.functionDeclarations"))
        for function, place in functions:
            yield _part(function, place, Level.TOOLS, "function", "", counter)
        if others := {name: value for name, value in tool.items() if name != "functionDeclarations"}:
            yield _part(others, path, Level.TOOLS, "tool", "", counter)
    system = body.get("systemInstruction")
    if system is not None:
        yield from _content(system, f"{lead}systemInstruction", Level.SYSTEM, "system", counter)
    for content, path in objects(body.get("contents"), f"{lead}contents"):
        yield from _content(content, path, Level.MESSAGES, str(content.get("role") or "user"), counter)


def _content(content: Any, path: str, level: Level, role: str, counter: TokenCounter) -> Sequence[Part]:
    if not isinstance(content, Mapping):
        raise InvalidRequestError(f"`{path}` must be an object with `parts`.", param=path)
    return [
        _part(part, place, level, data_of(part, place), role, counter)
        for part, place in objects(content.get("parts"), f"{path}.parts")
    ]


def _part(value: Mapping[str, Any], path: str, level: Level, kind: str, role: str, counter: TokenCounter) -> Part:
    if value.keys() == {"text"} and isinstance(value["text"], str):
        return Part(path, level, kind, value["text"], counter.count(value["text"]), role)
    shown, media = compatible.without_media(value)
    content = compatible.canonical(shown)
    return Part(path, level, kind, content, counter.count(content) + media * compatible.MEDIA_TOKENS, role)
