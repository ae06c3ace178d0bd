"""A request body as a provider's cache reads it: parts in the provider's own order, each with its place in the body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache

from kvledger.cache.digest import Digest, fields_digest, prefix_digest


class Level(Enum):
    """The three stretches of a prompt, in the order that every provider renders them."""

    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """An explicit cache mark of the request. `ttl` is the provider's own word ("5m"), as sent or by its default."""

    ttl: str


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a body that is cached or lost as a whole: a tool, a content block.

    `content` is its canonical text without any cache mark (structured values as JSON in the order sent, images by
    digest): two parts are the same if `kind`, `role` and `content` are. `tokens` may be counted or estimated.
    """

    path: str
    level: Level
    kind: str
    content: str
    tokens: int
    role: str = ""
    breakpoint: Breakpoint | None = None

    @property
    def identity(self) -> Digest:
        return _identity(self.kind, self.role, self.content)


@dataclass(frozen=True, slots=True)
class ProviderPrompt:
    """What a rulebook judges. `scope` is the isolation boundary (tenant, workspace, organisation), never from the body.

    `settings` are parameters beside the prompt, as canonical JSON text by name; which of them a cache depends on,
    and from which level on, is the rulebook's knowledge. Parts are in the provider's order.
    """

    provider: str
    model: str
    scope: str
    parts: tuple[Part, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts)

    def scaled(self, total: int) -> ProviderPrompt:
        """The same prompt with the tokens of its parts scaled to sum to `total`, the provider's own count.

        Cumulative sums are rounded, so no part is off by more than one and equal prefixes stay in proportion.
        """
        mine = self.tokens
        if mine in (total, 0):
            return self
        parts, sum_before = [], 0
        for part in self.parts:
            sum_after = sum_before + part.tokens
            tokens = sum_after * total // mine - sum_before * total // mine
            parts.append(replace(part, tokens=tokens))
            sum_before = sum_after
        return replace(self, parts=tuple(parts))


def prefix_digests(root: Digest, parts: tuple[Part, ...], at_level: Mapping[Level, str] | None = None) -> list[Digest]:
    """For each part, the digest of everything up to and including it, under `root`.

    `at_level` mixes a text (the settings that invalidate from there on) in before the first part of that level or of
    a later one.
    """
    digest, found, pending = root, [], dict(at_level or {})
    for part in parts:
        for level in list(pending) if pending else ():
            if _ORDER[level] <= _ORDER[part.level]:
                digest = prefix_digest(digest, fields_digest("settings", level=level.value, value=pending.pop(level)))
        digest = prefix_digest(digest, _identity(part.kind, part.role, part.content))
        found.append(digest)
    return found


@lru_cache(maxsize=4096)  # a conversation sends the same parts again with every turn
def _identity(kind: str, role: str, content: str) -> Digest:
    return fields_digest("part", kind=kind, role=role, content=content)


_ORDER = {level: order for order, level in enumerate(Level)}
