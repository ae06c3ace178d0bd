"""The rulebook of providers that cache every shared beginning by themselves; what differs between them is data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvledger.cache.digest import fields_digest
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Break, BreakReason, Split, Usage
from kvledger.providers import breaks, compatible
from kvledger.providers.editions import Edition, edition_of, plain_name, rules_of
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.reported import compatible_usage
from kvledger.providers.rulebook import TokenCounter, Verdict
from kvledger.providers.steps import Stop, readable, rounded, shared_tokens, stops


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a prompt finds. `known` are the entries of its stops from the first on, as far as there are any, expired
    ones included; `hit` is the index of the last stop that can be read, -1 for none."""

    stops: Sequence[Stop]
    known: Sequence[Entry]
    hit: int

    def tokens(self, count: int) -> int:
        """Tokens up to and including the first `count` stops."""
        return self.stops[count - 1].tokens if count else 0


class AutomaticRules:
    """Reads the longest beginning that an earlier request had, from the minimum on and in the provider's steps.

    `provider` is the name of a folder with a `rules.toml`. A beginning is found at the end of each part and every
    `PIECE` characters within one. Entries of the read beginning live on where a hit renews them; all that follows is
    written. Where writes are billed as such, what is not read is written.
    """

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.rules = rules_of(provider)

    @property
    def models(self) -> tuple[str, ...]:
        """Names, and patterns with `*`, of the models that there are rules for."""
        return self.rules.models

    def edition(self, model: str, at: float) -> Edition:
        """The rules in force for a model at a time; see `edition_of`."""
        return edition_of(self.rules, model, at)

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """See `Rulebook.prompt`."""
        model = body.get("model")
        if not isinstance(model, str):
            raise InvalidRequestError("`model` is required and missing.", param="model")
        parts = compatible.read_parts(body, counter, api, title=self.rules.title)
        settings = compatible.settings(body)
        for key in self.rules.keys:
            if "." in key and (value := _at_path(body, key)) is not None:
                settings[key] = compatible.canonical(value)
        return ProviderPrompt(self.provider, model, scope, parts, settings)

    def judge(
        self, prompt: ProviderPrompt, entries: EntryStore, at: float, *, earlier: ProviderPrompt | None = None
    ) -> Verdict:
        """See `Rulebook.judge`."""
        edition = self.edition(prompt.model, at)
        if prompt.tokens < edition.minimum:
            short = breaks.below_minimum(prompt.tokens, edition.minimum, prompt.model)
            return Verdict(self.account(prompt, edition, 0, [short]))
        found = self.look_up(prompt, edition, entries, at)
        read = rounded(found.tokens(found.hit + 1), minimum=edition.minimum, step=edition.step)
        account = self.account(prompt, edition, read, self.why(prompt, earlier, edition, found, read, at))
        renewed = found.known[: found.hit + 1] if edition.renewed else ()
        return Verdict(
            account, tuple(entry.refreshed(at) for entry in renewed), self.written(prompt, edition, found, at)
        )

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        """See `Rulebook.usage`; `api` "messages" is Anthropic's shape, which some providers speak too."""
        if api == "messages":
            from kvledger.providers.anthropic.usage import read_usage  # noqa: PLC0415 - the rarest shape

            return read_usage(reported)
        return compatible_usage(reported)

    def lifetime(self, prompt: ProviderPrompt, edition: Edition) -> tuple[str, float] | None:
        """The provider's word for the lifetime that this prompt asks for, and its seconds; None: it writes nothing."""
        return "default", edition.lifetime

    def look_up(self, prompt: ProviderPrompt, edition: Edition, entries: EntryStore, at: float) -> Lookup:
        """Walk the prompt's stops as long as entries are known."""
        chain, known, hit = self.stops(prompt), list[Entry](), -1
        for index, stop in enumerate(chain):
            entry = entries.get(stop.digest)
            if entry is None:
                break
            known.append(entry)
            if readable(entry, at, delay=edition.delay):
                hit = index
        return Lookup(chain, known, hit)

    def stops(self, prompt: ProviderPrompt) -> Sequence[Stop]:
        """Entries are a model's own and stay within a scope, and within one value of each key."""
        keys = {key: prompt.settings.get(key, "") for key in self.rules.keys}
        root = fields_digest(
            self.provider, scope=prompt.scope, model=plain_name(prompt.model), keys=compatible.canonical(keys)
        )
        return stops(root, prompt.parts)

    def written(self, prompt: ProviderPrompt, edition: Edition, found: Lookup, at: float) -> tuple[Entry, ...]:
        """Entries for every stop that has none, or an expired one."""
        lifetime = self.lifetime(prompt, edition)
        if lifetime is None:
            return ()
        ttl, seconds = lifetime
        return tuple(
            Entry(stop.digest, stop.tokens, ttl, seconds, at, at, at + seconds)
            for index, stop in enumerate(found.stops)
            if index >= len(found.known) or at > found.known[index].expires_at
        )

    def account(self, prompt: ProviderPrompt, edition: Edition, read: int, why: Sequence[Break]) -> Account:
        """The account of a prompt of which `read` tokens are read."""
        rest = prompt.tokens - read
        written = {}
        lifetime = self.lifetime(prompt, edition)
        if edition.writes and lifetime is not None and rest and prompt.tokens >= edition.minimum:
            written = {lifetime[0]: rest}
        split = Split(prompt.tokens, read, written, rest - sum(written.values()))
        return Account(split, tuple(why), f"{self.provider}/{edition.name}", edition.certain)

    def why(
        self,
        prompt: ProviderPrompt,
        earlier: ProviderPrompt | None,
        edition: Edition,
        found: Lookup,
        read: int,
        at: float,
    ) -> list[Break]:
        """What was sent before and is not read, and where the prompt leaves the earlier one."""
        told, changes = list[Break](), list[Break]()
        known = found.tokens(len(found.known))
        if earlier is not None and not breaks.cold(earlier, prompt):
            if breaks.same_cache(earlier, prompt, self.rules.keys) and known < prompt.tokens:
                known = max(known, shared_tokens(earlier, prompt))
            changes = breaks.changed(earlier, prompt, self.rules.keys, known=known, step=edition.step)
        shared = rounded(known, minimum=edition.minimum, step=edition.step)
        if shared > read:
            told.append(breaks.unread(shared, read, found.known[-1] if found.known else None, at, edition.delay))
        told += changes
        if not told and not read:
            told.append(Break(BreakReason.COLD, 0, detail="No earlier request begins like this one."))
        return told


def _at_path(body: Mapping[str, Any], path: str) -> Any:
    value: Any = body
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
