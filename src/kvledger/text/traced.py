"""Strings that know where each of their characters came from, through whatever a template does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from string import Formatter
from typing import Any, SupportsIndex

from kvledger.text.work import spend

TEMPLATE = "template"
"""Origin of text that the template itself wrote, and of message roles. Only here do special tokens count."""

Run = tuple[int, str | None]
"""So many characters of one origin: `TEMPLATE`, a path in the request body, or None where it was lost."""


class Traced(str):
    """A string with origins.

    Concatenating, cutting, trimming, splitting, joining and replacing keep the origin of every character. Any other
    change keeps it if the whole string has one origin, and loses it otherwise; it is never wrong.
    """

    __slots__ = ("_runs",)
    _runs: tuple[Run, ...]

    def __new__(cls, text: str, origin: str | None = None) -> Traced:
        return cls._of(text, ((len(text), origin),) if text else ())

    @classmethod
    def _of(cls, text: str, runs: tuple[Run, ...]) -> Traced:
        spend(chars=len(text))
        traced = super().__new__(cls, text)
        traced._runs = runs
        return traced

    @property
    def origin(self) -> str | None:
        """The one origin of the whole string, or None."""
        return self._runs[0][1] if len(self._runs) == 1 else None

    def spans(self) -> Iterator[tuple[int, int, str | None]]:
        """Yield (start, end, origin) of every run, in order."""
        at = 0
        for length, origin in self._runs:
            yield at, at + length, origin
            at += length

    def cut(self, start: int, end: int) -> Traced:
        """Return characters `start` to `end`, which lie inside the string in this order."""
        if start == 0 and end == len(self):
            return self
        overlaps = ((min(end, stop) - max(start, begin), origin) for begin, stop, origin in self.spans())
        return self._of(str.__getitem__(self, slice(start, end)), tuple(run for run in overlaps if run[0] > 0))

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> Traced:
        if isinstance(key, slice):
            start, end, step = key.indices(len(self))
            if step == 1:
                return self.cut(start, max(start, end))
            return Traced(str.__getitem__(self, key), self.origin)
        text = str.__getitem__(self, key)
        at = key.__index__() % len(self)
        return self.cut(at, at + len(text))

    def __add__(self, other: str) -> Traced:
        return concat((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> Traced:
        return concat((other, self)) if isinstance(other, str) else NotImplemented

    def strip(self, chars: str | None = None, /) -> Traced:
        return self.lstrip(chars).rstrip(chars)

    def lstrip(self, chars: str | None = None, /) -> Traced:
        return self.cut(len(self) - len(str.lstrip(self, chars)), len(self))

    def rstrip(self, chars: str | None = None, /) -> Traced:
        return self.cut(0, len(str.rstrip(self, chars)))

    def removeprefix(self, prefix: str, /) -> Traced:
        return self.cut(len(self) - len(str.removeprefix(self, prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> Traced:
        return self.cut(0, len(str.removesuffix(self, suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._locate(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        whole = self._locate(str.splitlines(self, True), "")
        return whole if keepends else [line[: len(str.splitlines(line)[0])] for line in whole]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, _ = str.partition(self, sep)
        return self._in_three(len(head), len(head) + len(middle))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        head, middle, _ = str.rpartition(self, sep)
        return self._in_three(len(head), len(head) + len(middle))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> Traced:
        if not old:
            spend(chars=len(new) * (len(self) + 1))
            return Traced(str.replace(self, old, new, count))
        return _join(new, self.split(old, count))

    def join(self, parts: Iterable[str], /) -> Traced:
        return _join(self, parts)

    def lower(self) -> Traced:
        return Traced(str.lower(self), self.origin)

    def upper(self) -> Traced:
        return Traced(str.upper(self), self.origin)

    def capitalize(self) -> Traced:
        return Traced(str.capitalize(self), self.origin)

    def title(self) -> Traced:
        return Traced(str.title(self), self.origin)

    def format(self, *args: object, **kwargs: object) -> Traced:
        """As `str.format`, for plain fields such as `{}`, `{0}` and `{name}` only."""
        parts: list[str] = []
        given = iter(args)
        for literal, field, spec, conversion in Formatter().parse(self):
            parts.append(Traced(literal, self.origin))
            if field is None:
                continue
            if spec or conversion or not (field.isalnum() or field.isidentifier() or not field):
                raise ValueError(f"the field {{{field}}} of a format is not a plain one")
            value = args[int(field)] if field.isdecimal() else kwargs[field] if field else next(given, "")
            parts.append(value if isinstance(value, str) else str(value))
        return concat(parts)

    def _in_three(self, start: int, end: int) -> tuple[str, str, str]:
        return self.cut(0, start), self.cut(start, end), self.cut(end, len(self))

    def _locate(self, parts: list[str], sep: str | None) -> list[str]:
        """Cut `parts`, which follow each other in this string with `sep` (None: white space) between, out of it."""
        found: list[str] = []
        at = 0
        for part in parts:
            start = str.find(self, part, at) if sep is None else at
            found.append(self.cut(start, start + len(part)))
            at = start + len(part) + len(sep or "")
        return found


def concat(parts: Iterable[str]) -> Traced:
    """Join strings end to end; the origin of a plain string counts as lost."""
    parts = tuple(parts)
    spend(chars=sum(map(len, parts)))
    runs: list[Run] = []
    for part in parts:
        for length, origin in part._runs if isinstance(part, Traced) else ((len(part), None),):
            if runs and runs[-1][1] == origin:
                runs.append((length + runs.pop()[0], origin))
            elif length:
                runs.append((length, origin))
    return Traced._of("".join(parts), tuple(runs))


def _join(separator: str, parts: Iterable[str]) -> Traced:
    pieces: list[str] = []
    for part in parts:
        pieces += (separator, part) if pieces else (part,)
    return concat(pieces)


def trace(value: Any, origin: str, check: Callable[[str], None]) -> Any:
    """Return a JSON value with every string in it, keys included, traced to `origin` and passed through `check`."""
    if isinstance(value, str):
        check(value)
        return Traced(value, origin)
    if isinstance(value, dict):
        return {trace(key, origin, check): trace(item, origin, check) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [trace(item, origin, check) for item in value]
    return value
