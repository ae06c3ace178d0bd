"""A prompt: token ids, and where in the request body each of them came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """Tokens `start` (included) to `end` (excluded) came from `path` in the request body.

    `path` is a JSON path such as `messages[2].content` or `tools[0]`; tokens that the chat template itself wrote
    carry `template`.
    """

    start: int
    end: int
    path: str


@dataclass(frozen=True)
class Mark:
    """A cache breakpoint after the first `position` tokens, kept for `ttl` seconds (None: the cache's default)."""

    position: int
    ttl: float | None = None


@dataclass(frozen=True)
class Prompt:
    """Token ids with their origins. Segments are in order, do not overlap and cover every token."""

    tokens: tuple[int, ...]
    segments: tuple[Segment, ...] = ()
    marks: tuple[Mark, ...] = ()

    def __post_init__(self) -> None:
        at = 0
        for segment in self.segments:
            if segment.start != at or segment.end <= segment.start:
                raise ValueError(f"segment {segment} does not continue at token {at}")
            at = segment.end
        if self.segments and at != len(self.tokens):
            raise ValueError(f"segments cover {at} of {len(self.tokens)} tokens")
        for mark in self.marks:
            if not 0 < mark.position <= len(self.tokens):
                raise ValueError(f"mark at {mark.position} lies outside a prompt of {len(self.tokens)} tokens")

    def segment_at(self, position: int) -> Segment | None:
        """The segment that holds token `position`, or None where segments are unknown."""
        return next((s for s in self.segments if s.start <= position < s.end), None)


@dataclass(frozen=True)
class Divergence:
    """The first token where a prompt stops repeating an earlier sequence, and the part of the request it came from.

    `path` is None where the prompt simply ends earlier.
    """

    position: int
    path: str | None


def first_divergence(earlier: Sequence[int], later: Prompt) -> Divergence | None:
    """Say where `later` leaves the tokens of `earlier`; None if it repeats them all."""
    pairs = zip(earlier, later.tokens, strict=False)
    position = next((i for i, (old, new) in enumerate(pairs) if old != new), min(len(earlier), len(later.tokens)))
    if position == len(earlier):
        return None
    segment = later.segment_at(position)
    return Divergence(position, segment.path if segment else None)
