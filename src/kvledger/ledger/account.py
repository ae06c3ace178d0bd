"""How one prompt splits into tokens read from a provider's cache, written to it, and neither; and why it broke off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class Split:
    """Token counts of one prompt. `written` maps a lifetime ("5m", "1h", "30m", "12h"; "default" where the provider
    has one lifetime only) to what was written under it; a provider without a write fee writes nothing in this sense.

    Law: the parts are disjoint, none is negative, and they sum to `prompt_tokens` (`ValueError` otherwise).
    """

    prompt_tokens: int
    read: int = 0
    written: Mapping[str, int] = field(default_factory=dict)
    fresh: int = 0

    def __post_init__(self) -> None:
        counts = {"read": self.read, "fresh": self.fresh, **{f"written {ttl}": n for ttl, n in self.written.items()}}
        for name, count in counts.items():
            if count < 0:
                raise ValueError(f"{name} is {count} tokens: a count cannot be negative")
        if sum(counts.values()) != self.prompt_tokens:
            shown = " + ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(f"{shown} is not the prompt's {self.prompt_tokens} tokens")

    @property
    def written_tokens(self) -> int:
        return sum(self.written.values())


class BreakReason(Enum):
    """Why a rulebook reads no further than it does. The first that holds, in this order, is the one named."""

    NOT_ASKED = "not_asked"
    """Nothing in the request asks for caching, and this provider does not cache unasked."""
    BELOW_MINIMUM = "below_minimum"
    COLD = "cold"
    """No earlier request shares even the first part: there was nothing to read."""
    MODEL_CHANGED = "model_changed"
    KEY_CHANGED = "key_changed"
    TOOLS_CHANGED = "tools_changed"
    SYSTEM_CHANGED = "system_changed"
    MESSAGES_CHANGED = "messages_changed"
    SETTINGS_CHANGED = "settings_changed"
    """A parameter beside the prompt that this provider's cache depends on; `Break.path` names it."""
    NOT_YET_READABLE = "not_yet_readable"
    """The entry was being written by a request whose response had not begun."""
    EXPIRED = "expired"
    LOOKBACK_EXCEEDED = "lookback_exceeded"
    """The entry is alive but further back than the provider looks."""
    NEVER_WRITTEN = "never_written"
    """The text was sent before, but no entry ends at a place this request looks at."""
    DROPPED = "dropped"
    """A best-effort cache did not serve a live entry (the seeded probability of the emulator)."""


@dataclass(frozen=True, slots=True)
class Break:
    """Where reading stopped. `tokens` is what an unbroken prefix would have let it read beyond that.

    `path` is the place in the request body where the prefix first differs from the nearest earlier one (None where
    bodies do not differ), `offset` the character in that part, `before` and `after` excerpts of both sides.
    `detail` is one sentence with the numbers of the rule (minimum and tokens, gap and TTL, ...).
    """

    reason: BreakReason
    tokens: int
    path: str | None = None
    offset: int | None = None
    before: str = ""
    after: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Account:
    """A rulebook's verdict on one prompt: the split, each break with its reason, and the dated rule it went by
    (`rule` names the edition in the provider's `rules.toml`, `certain` is False where that edition says so)."""

    split: Split
    breaks: tuple[Break, ...] = ()
    rule: str = ""
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Usage:
    """What a provider reported, or this server reports, for one request: the prompt's split and the output.

    `reasoning` is part of `output`. Dimensions that change the price, where known: `service_tier` ("standard",
    "batch", "flex", "priority"), `region` (Anthropic `inference_geo`, OpenAI regional processing), `speed` ("fast").
    `storage_token_seconds` is explicit caches' tokens x seconds alive (Gemini). `cache_mode` is "explicit" or
    "implicit" where the provider says which cache was read and prices the two differently (Qwen), else empty.
    Law: nothing is negative.
    """

    split: Split
    output: int = 0
    reasoning: int = 0
    service_tier: str = "standard"
    region: str = ""
    speed: str = "standard"
    storage_token_seconds: int = 0
    cache_mode: str = ""

    def __post_init__(self) -> None:
        if min(self.output, self.reasoning, self.storage_token_seconds) < 0 or self.reasoning > self.output:
            raise ValueError(f"output {self.output}, of it reasoning {self.reasoning}: not a possible usage")
