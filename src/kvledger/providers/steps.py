"""Caches that find a shared beginning by themselves, wherever it ends: a prompt as a chain of places to stop at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from kvledger.cache.digest import Digest, fields_digest, prefix_digest
from kvledger.providers.entries import Entry
from kvledger.providers.prompt import Level, Part, ProviderPrompt, prefix_digests

PIECE = 256
"""Characters between two stops inside a part, about 64 tokens: how exactly a beginning that ends in a part is found."""


class Stop(NamedTuple):
    """A place where a cached prefix may end: the digest and the tokens of everything before it.

    `part` is the index of the part that it ends or lies in, `whole` says which of the two. Tokens inside a part are in
    proportion to its characters.
    """

    digest: Digest
    tokens: int
    part: int
    whole: bool


def stops(root: Digest, parts: Sequence[Part], at_level: Mapping[Level, str] | None = None) -> list[Stop]:
    """Every stop of a prompt, first to last. `root` and `at_level` are those of `prefix_digests`; equal beginnings
    under an equal root have equal stops, however they go on."""
    settings, found = dict(at_level or {}), list[Stop]()
    before, tokens = root, 0
    for index, (part, digest) in enumerate(zip(parts, prefix_digests(root, tuple(parts), at_level), strict=True)):
        length = len(part.content)
        if length > PIECE:
            mixed = "".join(settings.get(level, "") + "\0" for level in _LEVELS[: _LEVELS.index(part.level) + 1])
            opening = prefix_digest(before, _opening(part.kind, part.role, mixed))
            for number, inside in enumerate(_inside(opening, part.content), 1):
                found.append(Stop(inside, tokens + part.tokens * number * PIECE // length, index, whole=False))
        before, tokens = digest, tokens + part.tokens
        found.append(Stop(digest, tokens, index, whole=True))
    return found


@lru_cache(maxsize=1024)
def _opening(kind: str, role: str, settings: str) -> Digest:
    return fields_digest("opening", kind=kind, role=role, settings=settings)


@lru_cache(maxsize=16_384)  # a conversation sends the same texts behind the same beginnings with every turn
def _inside(chain: Digest, text: str) -> tuple[Digest, ...]:
    """The digest at each stop inside a text that follows the prefix `chain`."""
    found = []
    for end in range(PIECE, len(text), PIECE):
        chain = prefix_digest(chain, fields_digest("piece", text=text[end - PIECE : end]))
        found.append(chain)
    return tuple(found)


def rounded(tokens: int, *, minimum: int = 0, step: int = 1) -> int:
    """What a cache reports of a shared beginning: nothing below `minimum` tokens, else the whole steps in it."""
    return tokens // step * step if tokens >= minimum else 0


def shared_tokens(earlier: ProviderPrompt, later: ProviderPrompt) -> int:
    """How many of the tokens of `later` begin `earlier` too, to the nearest stop before the first difference."""
    nowhere = fields_digest("shared")
    known = {stop.digest for stop in stops(nowhere, earlier.parts)}
    return max((stop.tokens for stop in stops(nowhere, later.parts) if stop.digest in known), default=0)


def readable(entry: Entry, at: float, *, delay: float = 0.0) -> bool:
    """Whether an entry that takes `delay` seconds to build can be read at `at`."""
    return entry.readable_at + delay <= at <= entry.expires_at


_LEVELS = tuple(Level)
