"""Where two prompts first differ, in the order in which the provider reads them."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.providers.prompt import Level, Part, ProviderPrompt

EXCERPT = 80
"""The most characters of a prompt that are ever shown."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first part that is not the same on both sides.

    `before` and `after` are excerpts around the first differing character; one is empty where a prompt simply ends.
    `offset` is that character's index within the part's content; `shared_tokens` what both sides have before it, in
    the later prompt's tokens, whole parts only. `path` is the place in the later body (in the earlier one where the
    later has ended), `path_before` the place in the earlier one.
    """

    level: Level
    path: str
    path_before: str | None
    offset: int
    before: str
    after: str
    shared_parts: int
    shared_tokens: int


def first_difference(earlier: ProviderPrompt, later: ProviderPrompt) -> Difference | None:
    """Say where `later` leaves `earlier`; None if `later` begins with all of `earlier`."""
    shared = shared_parts(earlier, later)
    if shared == len(earlier.parts):
        return None
    old = earlier.parts[shared]
    new = later.parts[shared] if shared < len(later.parts) else None
    offset = common_characters(old.content, new.content) if new else 0
    return Difference(
        level=(new or old).level,
        path=(new or old).path,
        path_before=old.path,
        offset=offset,
        before=excerpt(old.content, offset),
        after=excerpt(new.content, offset) if new else "",
        shared_parts=shared,
        shared_tokens=sum(part.tokens for part in later.parts[:shared]),
    )


def shared_parts(earlier: ProviderPrompt, later: ProviderPrompt) -> int:
    """How many parts at the start are the same on both sides."""
    pairs = zip(earlier.parts, later.parts, strict=False)
    fewest = min(len(earlier.parts), len(later.parts))
    return next((i for i, (old, new) in enumerate(pairs) if not same(old, new)), fewest)


def same(one: Part, other: Part) -> bool:
    """Whether two parts read the same to a provider, wherever they stand and whatever mark they carry."""
    return one.content == other.content and one.kind == other.kind and one.role == other.role


def common_characters(one: str, other: str) -> int:
    """How many characters at the start are the same: by halving, since slices compare faster than characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def excerpt(text: str, offset: int) -> str:
    """At most `EXCERPT` characters of `text` around `offset`, with three dots where it goes on."""
    start = max(0, min(offset - EXCERPT // 4, len(text) - EXCERPT))
    end = start + EXCERPT
    return (
        ("..." if start else "")
        + text[start + 3 * bool(start) : end - 3 * (end < len(text))]
        + ("..." if end < len(text) else "")
    )
