"""The dated rules of a provider that caches by itself: `rules.toml` of its folder, as values."""

from __future__ import annotations

import difflib
import tomllib
from datetime import UTC, date, datetime
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from importlib.resources import files

import msgspec

from kvledger.errors import InvalidRequestError


class Edition(msgspec.Struct, frozen=True, rename={"since": "from"}):
    """What holds for some models (names, or patterns with `*`) from one day to another, both included, in UTC.

    `minimum` and `step` are in tokens, `lifetime` and `delay` (until a new entry can be read) in seconds; `renewed`
    says whether a hit starts the lifetime anew, `writes` whether what is written is billed as such, `implicit_only`
    that a provider with explicit caches has none for these models. `variant` tells apart sets of rules that hold side
    by side (a platform, a mode). `certain` is False where a source is in doubt or silent about what decides a hit;
    `note` says about what.
    """

    name: str
    models: tuple[str, ...]
    lifetime: float
    renewed: bool
    minimum: int = 0
    step: int = 1
    delay: float = 0.0
    writes: bool = False
    implicit_only: bool = False
    variant: str = ""
    since: date | None = None
    until: date | None = None
    certain: bool = True
    note: str = ""

    def covers(self, day: date) -> bool:
        return (self.since is None or self.since <= day) and (self.until is None or day <= self.until)

    def names(self, model: str) -> bool:
        return _named(self.models, model)


@lru_cache(maxsize=4096)
def _named(patterns: tuple[str, ...], model: str) -> bool:
    return any(fnmatchcase(model, pattern.lower()) for pattern in patterns)


class Rules(msgspec.Struct, frozen=True):
    """The whole file. `title` is the provider's own name; `keys` are the fields of a body (dotted paths) of which each
    value has a cache of its own."""

    title: str
    compiled: date
    sources: tuple[str, ...]
    edition: tuple[Edition, ...]
    keys: tuple[str, ...] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """Names and patterns, each once, in the order of the file."""
        return tuple(dict.fromkeys(name for edition in self.edition for name in edition.models))


@cache
def rules_of(folder: str) -> Rules:
    """The rules in `providers/FOLDER/rules.toml`."""
    text = files("kvledger.providers").joinpath(folder, "rules.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), Rules)


def edition_of(rules: Rules, model: str, at: float, *, variant: str = "") -> Edition:
    """The edition in force for `model` at `at` (seconds since the epoch); of several, the one that began last.

    On a day that none covers the nearest is taken, and is not certain. Raises `InvalidRequestError` that lists near
    names for a model that no edition names.
    """
    plain = plain_name(model)
    named = [each for each in rules.edition if each.variant == variant and each.names(plain)]
    if not named:
        near = difflib.get_close_matches(plain, rules.models, n=3, cutoff=0.5)
        instead = f"did you mean {' or '.join(near)}?" if near else f"use one of {', '.join(rules.models)}."
        raise InvalidRequestError(
            f"There are no {rules.title} caching rules for a model `{model[:80]}`: {instead}", param="model"
        )
    day = datetime.fromtimestamp(at, UTC).date()
    begun = [each for each in named if each.since is None or each.since <= day]
    chosen = max(begun, key=_begin) if begun else min(named, key=_begin)
    return chosen if chosen.covers(day) else msgspec.structs.replace(chosen, certain=False)


def plain_name(model: str) -> str:
    """A model's own name: lower case, without the vendor or the folder that a router puts before it."""
    return model.lower().rpartition("/")[2]


def _begin(edition: Edition) -> date:
    return edition.since or date.min
