"""DeepSeek's caching rules: whole units only, which are stored where inputs end and where two requests parted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvledger.ledger.account import Usage
from kvledger.providers.automatic import AutomaticRules, Lookup
from kvledger.providers.deepseek.usage import read_usage
from kvledger.providers.editions import Edition
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.steps import readable

UNIT = "unit"
SEEN = "seen"
"""The word on entries that only remember that a text was sent: never read, but where the next request parts from it, a
unit is stored."""


class DeepSeekRules(AutomaticRules):
    """A then B, A then C: the second finds no unit and stores A; only the third to begin with A reads it."""

    def __init__(self) -> None:
        super().__init__("deepseek")

    def look_up(self, prompt: ProviderPrompt, edition: Edition, entries: EntryStore, at: float) -> Lookup:
        found = super().look_up(prompt, edition, entries, at)
        units = [
            index
            for index, entry in enumerate(found.known)
            if entry.ttl == UNIT and readable(entry, at, delay=edition.delay)
        ]
        return replace(found, hit=units[-1] if units else -1)

    def written(self, prompt: ProviderPrompt, edition: Edition, found: Lookup, at: float) -> tuple[Entry, ...]:
        """The end of this input and the place where it parts from what was sent before become units."""
        alive = next((i for i, entry in enumerate(found.known) if at > entry.expires_at), len(found.known))
        units, entries = {alive - 1, len(found.stops) - 1}, []
        for index, stop in enumerate(found.stops):
            is_unit = index < alive and found.known[index].ttl == UNIT
            if index in units and not is_unit:
                entries.append(Entry(stop.digest, stop.tokens, UNIT, edition.lifetime, at, at, at + edition.lifetime))
            elif index >= alive:
                entries.append(Entry(stop.digest, stop.tokens, SEEN, edition.lifetime, at, at, at + edition.lifetime))
        return tuple(entries)

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        return super().usage(reported, api=api) if api == "messages" else read_usage(reported)
