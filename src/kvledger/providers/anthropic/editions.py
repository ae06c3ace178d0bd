"""`rules.toml` as values: which rule holds for a model, on a platform, on a day."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.prompt import Level


class Dated(msgspec.Struct, frozen=True, rename={"since": "from"}):
    """What a rule and its sources have in common: first and last day seen, and how sure the sources are (A, B, C)."""

    confidence: str
    since: date | None = None
    until: date | None = None
    note: str = ""

    def covers(self, day: date) -> bool:
        return (self.since is None or self.since <= day) and (self.until is None or day <= self.until)


class Minimum(Dated, frozen=True, kw_only=True):
    tokens: int


class Joined(Dated, frozen=True, kw_only=True):
    """Kinds of block of which a run counts as one position."""

    kinds: tuple[str, ...]
    platforms: tuple[str, ...]


class Model(msgspec.Struct, frozen=True):
    name: str
    minimum: tuple[Minimum, ...]
    bedrock: tuple[Minimum, ...] = ()
    aliases: tuple[str, ...] = ()
    leads: bool = False
    strips_thinking: bool = False
    system_messages: bool = False


class Platform(msgspec.Struct, frozen=True):
    name: str
    provider: str
    isolation: str
    system_messages: bool = True
    lookback_confidence: str = "A"
    automatic_since: str | None = None


class Marks(msgspec.Struct, frozen=True):
    most: int
    lifetimes: dict[str, int]
    default: str


class Lookback(msgspec.Struct, frozen=True):
    positions: int
    confidence: str


class Rules(msgspec.Struct, frozen=True):
    """The whole file."""

    compiled: date
    sources: tuple[str, ...]
    marks: Marks
    lookback: Lookback
    joined: tuple[Joined, ...]
    settings: dict[str, Level]
    leading: tuple[str, ...]
    defaults: dict[str, Any]
    doubtful: tuple[str, ...]
    platform: tuple[Platform, ...]
    model: tuple[Model, ...]


@dataclass(frozen=True, slots=True)
class Edition:
    """What holds for one request. `rule` is its name on accounts; `certain` is False where the sources are not."""

    rule: str
    minimum: int
    positions: int
    joined: frozenset[str]
    certain: bool
    lookback_certain: bool


@cache
def rules() -> Rules:
    return msgspec.convert(tomllib.loads(files(__package__).joinpath("rules.toml").read_text("utf-8")), Rules)


def platform_named(name: str) -> Platform:
    """Raises `ValueError` for a platform that the rules do not know."""
    for platform in rules().platform:
        if platform.name == name:
            return platform
    known = ", ".join(platform.name for platform in rules().platform)
    raise ValueError(f"{name!r} is no platform that serves Claude: use one of {known}")


_AROUND = re.compile(
    r"^(?:[a-z-]+\.)?(?:anthropic[./])?"  # Bedrock's region and vendor, routers' vendor
    r"(?P<name>claude-[a-z0-9.-]+?)"
    r"(?:[@-](?:\d{8}|latest|default))?(?:-v\d+(?::\d+)?)?(?:\[1m\])?$"
)


def model_named(name: str) -> Model:
    """The model behind a name as any platform writes it: dated, aliased, with a region, with dots.

    Raises `InvalidRequestError` that lists near names for one that the rules do not know.
    """
    inner = _AROUND.match(name.lower())
    plain = inner["name"].replace(".", "-") if inner else name
    if (model := _by_name().get(plain)) is not None:
        return model
    near = difflib.get_close_matches(plain, _by_name(), n=3, cutoff=0.5)
    known = ", ".join(model.name for model in rules().model)
    instead = f"did you mean {' or '.join(near)}?" if near else f"use one of {known}."
    raise InvalidRequestError(
        f"There are no Anthropic caching rules for a model `{name[:80]}`: {instead}", param="model"
    )


@cache
def _by_name() -> dict[str, Model]:
    return {name: model for model in rules().model for name in (model.name, *model.aliases)}


def takes_automatic(model: Model, platform: Platform) -> bool:
    """Whether the top-level `cache_control` is accepted there for that model."""
    if platform.automatic_since is None:
        return True
    names = [each.name for each in rules().model]
    return names.index(model.name) <= names.index(platform.automatic_since)


def edition(model: Model, platform: Platform, at: float) -> Edition:
    """The rules in force at `at`, in seconds since the epoch.

    Of several records the one that began last counts. On a day that none covers (a gap between two editions of the
    page, a time before the first) the nearest is taken and is not certain.
    """
    day = datetime.fromtimestamp(at, UTC).date()
    records = model.bedrock if platform.name == "bedrock" and model.bedrock else model.minimum
    begun = [record for record in records if record.since is None or record.since <= day]
    record = max(begun or records[:1], key=lambda each: each.since or date.min)
    borrowed = platform.name == "bedrock" and not model.bedrock
    table = rules()
    return Edition(
        rule=f"{platform.name}/{model.name}/{record.since or 'undated'}",
        minimum=record.tokens,
        positions=table.lookback.positions,
        joined=frozenset(
            kind for runs in table.joined if platform.name in runs.platforms and runs.covers(day) for kind in runs.kinds
        ),
        certain=record.confidence != "C" and record.covers(day) and not borrowed,
        lookback_certain="C" not in (table.lookback.confidence, platform.lookback_confidence),
    )
