"""`rules.toml` as values: which of OpenAI's two caches a model has, with its numbers, on a day."""

from __future__ import annotations

import re
import tomllib
from datetime import UTC, datetime, time
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from kvledger.providers import editions
from kvledger.providers.editions import plain_name


class Edition(editions.Edition, frozen=True, kw_only=True):
    """`kind` says which cache: "steps" finds a shared beginning by itself, "breakpoints" reads and writes at marks.

    `retention` are the values of `prompt_cache_retention` that these models take. The rest are the bounds of the
    look-up set: either the `latest` breakpoints of any kind, or the other three together.
    """

    kind: Literal["steps", "breakpoints", "none"]
    retention: tuple[str, ...] = ()
    latest: int = 0
    first_explicit: int = 0
    latest_explicit: int = 0
    earlier_ends: int = 0


class Retention(msgspec.Struct, frozen=True):
    """Seconds after the last use: below `least` an entry lives, above `most` it is gone, `idle` is what is taken."""

    least: float
    idle: float
    most: float


class Platform(msgspec.Struct, frozen=True):
    name: str
    default_retention: tuple[str, ...]
    refuses_new_fields: bool


class Rules(editions.Rules, frozen=True, kw_only=True):
    """The whole file. `settings` names each setting as the two APIs spell it, `defaults` are values as JSON text."""

    edition: tuple[Edition, ...]
    retention: dict[str, Retention]
    lifetimes: dict[str, float]
    settings: dict[str, tuple[str, ...]]
    defaults: dict[str, tuple[str, ...]]
    platform: tuple[Platform, ...]


@cache
def rules() -> Rules:
    return msgspec.convert(tomllib.loads(files(__package__).joinpath("rules.toml").read_text("utf-8")), Rules)


def platform_named(name: str) -> Platform:
    """Raises `ValueError` for a platform that the rules do not know."""
    for platform in rules().platform:
        if platform.name == name:
            return platform
    known = ", ".join(platform.name for platform in rules().platform)
    raise ValueError(f"{name!r} is no platform that serves OpenAI's models: use one of {known}")


_FINE_TUNED = re.compile(r"ft:(?P<base>[^:]+):.*")
_DATED = re.compile(r"-\d{4}-\d{2}-\d{2}$")


def family(model: str) -> str:
    """The model that a snapshot (`gpt-5.2-2025-12-11`) or a fine-tuned model (`ft:gpt-4o-...:org::id`) comes from."""
    name = plain_name(model)
    tuned = _FINE_TUNED.fullmatch(name)
    return _DATED.sub("", tuned["base"] if tuned else name)


def edition_of(model: str, at: float) -> Edition:
    """The edition in force for a model at a time; see `kvledger.providers.editions.edition_of`."""
    found = editions.edition_of(rules(), family(model), at)
    assert isinstance(found, Edition)
    return found


def newest_edition(model: str) -> Edition:
    """What holds for a model now, by these rules; raises like `edition_of`."""
    return edition_of(model, datetime.combine(rules().compiled, time(), UTC).timestamp())
