"""Which entry a prompt reads: each mark looks back over the positions before it for what earlier requests wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from kvledger.cache.digest import Digest, fields_digest
from kvledger.providers.anthropic.editions import Edition, Model, Platform
from kvledger.providers.anthropic.settings import by_level, mixed
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import Part, ProviderPrompt, prefix_digests


@dataclass(frozen=True, slots=True)
class Chain:
    """A prompt as its prefixes: for each part the digest, the tokens and the position up to and including it.

    `marks` are the indices of the parts whose mark counts, that is whose prefix has the minimum of tokens.
    """

    digests: list[Digest]
    tokens: list[int]
    positions: list[int]
    marks: list[int]

    def up_to(self, index: int) -> int:
        """Tokens of the prefix that ends with part `index`; 0 for -1, the empty prefix."""
        return self.tokens[index] if index >= 0 else 0

    @property
    def reach(self) -> int:
        """The last part that is written or read, -1 if none."""
        return self.marks[-1] if self.marks else -1


@dataclass(frozen=True, slots=True)
class Hits:
    """What the marks found. `best` is the last part that is read, -1 for none; `own` are the marks that found an entry
    at their very place; `entries` what was found, each once."""

    best: int
    own: frozenset[int]
    entries: tuple[Entry, ...]


def chain(prompt: ProviderPrompt, model: Model, platform: Platform, edition: Edition) -> Chain:
    """Entries are a model's own and stay within a platform and a scope; settings are mixed in where they are lost."""
    root = fields_digest("anthropic", platform=platform.name, scope=prompt.scope, model=model.name)
    tokens = list(accumulate(part.tokens for part in prompt.parts))
    return Chain(
        digests=prefix_digests(root, prompt.parts, mixed(by_level(prompt, model))),
        tokens=tokens,
        positions=positions(prompt.parts, edition.joined),
        marks=[i for i, part in enumerate(prompt.parts) if part.breakpoint and tokens[i] >= edition.minimum],
    )


def positions(parts: Sequence[Part], joined: frozenset[str]) -> list[int]:
    """The number of each part's position. A run of parts of one of the `joined` kinds is one position."""
    numbers: list[int] = []
    for index, part in enumerate(parts):
        runs_on = index > 0 and part.kind in joined and part.kind == parts[index - 1].kind
        numbers.append(numbers[-1] + (not runs_on) if numbers else 0)
    return numbers


def look_back(chain: Chain, entries: EntryStore, at: float, window: int) -> Hits:
    """What each mark finds among `window` positions, its own first, of entries that can be read at `at`."""
    best, own, found = -1, set[int](), dict[Digest, Entry]()
    for mark in chain.marks:
        for index in range(mark, -1, -1):
            if chain.positions[mark] - chain.positions[index] >= window:
                break
            entry = entries.get(chain.digests[index])
            if entry is not None and readable(entry, at):
                best = index  # marks come in order, so a later one never finds less
                found[entry.digest] = entry
                if index == mark:
                    own.add(mark)
                break
    return Hits(best, frozenset(own), tuple(found.values()))


def readable(entry: Entry, at: float) -> bool:
    return entry.readable_at <= at <= entry.expires_at
