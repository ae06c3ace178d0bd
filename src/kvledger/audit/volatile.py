"""The span in which two texts differ, and what it looks like: a time, a date, an identifier, a number, a path."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvledger.providers.difference import common_characters

_TOKEN = re.compile(r"[\w:.,+/\\@-]*$"), re.compile(r"^[\w:.,+/\\@-]*")
_WORD = 40
_SHAPES = (
    ("a UUID", re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)),
    ("a time", re.compile(r"\b\d{1,2}:\d{2}(:\d{2})?\b")),
    ("a date", re.compile(r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{2,4}\b")),
    ("a relative time", re.compile(r"\b\d+ (second|minute|hour|day|week)s?\b|\byesterday\b|\bjust now\b")),
    ("a path", re.compile(r"(^|\s)(~?/|[A-Za-z]:\\)[\w.-]+[/\\]")),
    ("an identifier", re.compile(r"\b(?=[\w-]*\d)[\w-]*[0-9a-f]{8,}[\w-]*\b", re.IGNORECASE)),
    ("a number", re.compile(r"^\W*[\d.,]+\W*$")),
    ("a day", re.compile(r"\b(Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day\b")),
)


@dataclass(frozen=True, slots=True)
class Span:
    """Two texts are the same for `before` characters at the start and `after` at the end. `shape` says what stands
    between, "" if it is none of the usual things."""

    before: int
    after: int
    shape: str

    def static(self, text: str) -> str:
        """What of a text of this form stays."""
        return text[: self.before] + (text[len(text) - self.after :] if self.after else "")

    def moving(self, text: str) -> str:
        """What of a text of this form changes."""
        return text[self.before : len(text) - self.after]

    def joined(self, other: Span) -> Span:
        """The span that covers both."""
        return Span(min(self.before, other.before), min(self.after, other.after), self.shape or other.shape)


def span(earlier: str, later: str) -> Span:
    """The span of two different texts."""
    before = common_characters(earlier, later)
    rest = min(len(earlier), len(later)) - before
    after = common_characters(earlier[::-1][:rest], later[::-1][:rest])
    head, tail = later[:before], later[len(later) - after :] if after else ""
    # Digits of a clock often change one by one: the whole word around them is what changes.
    left, right = _TOKEN[0].search(head[-_WORD:]), _TOKEN[1].search(tail[:_WORD])
    before -= len(left[0]) if left else 0
    after -= len(right[0]) if right else 0
    return Span(before, after, _shape(later[before : len(later) - after]))


def _shape(word: str) -> str:
    if len(word) > 200:
        return ""
    return next((name for name, pattern in _SHAPES if pattern.search(word)), "")
