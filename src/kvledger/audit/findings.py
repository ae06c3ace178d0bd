"""What an audit says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

from kvledger.audit.record import Source, Unread


class Code(Enum):
    """The names of findings; `docs/audit.md` explains each with its remedy."""

    VOLATILE_PREFIX = "VOLATILE_PREFIX"
    TOOLS_REORDERED = "TOOLS_REORDERED"
    TOOLS_CHANGED = "TOOLS_CHANGED"
    EXAMPLES_REORDERED = "EXAMPLES_REORDERED"
    KEY_ORDER_CHANGED = "KEY_ORDER_CHANGED"
    HISTORY_REWRITTEN = "HISTORY_REWRITTEN"
    MODEL_SWITCHED = "MODEL_SWITCHED"
    PARAMS_CHANGED = "PARAMS_CHANGED"
    MARK_MISSING = "MARK_MISSING"
    MARK_ON_CHANGING_CONTENT = "MARK_ON_CHANGING_CONTENT"
    LOOKBACK_EXCEEDED = "LOOKBACK_EXCEEDED"
    BELOW_MINIMUM = "BELOW_MINIMUM"
    TTL_EXPIRED = "TTL_EXPIRED"
    WRITE_NEVER_READ = "WRITE_NEVER_READ"
    PARALLEL_FAN_OUT = "PARALLEL_FAN_OUT"
    ISOLATED = "ISOLATED"
    IMPLICIT_BREAKPOINT_ON_SUFFIX = "IMPLICIT_BREAKPOINT_ON_SUFFIX"
    BATCH_POSSIBLE = "BATCH_POSSIBLE"
    NOT_WORTH_CACHING = "NOT_WORTH_CACHING"
    UNEXPLAINED = "UNEXPLAINED"


@dataclass(frozen=True, slots=True)
class Where:
    """The first difference: path and character in the later body, excerpts of both sides (80 characters at most)."""

    path: str
    offset: int | None = None
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What to do. `patch` is an RFC 6902 patch on the request body of `example`; () where the change is not in it."""

    text: str
    patch: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """`tokens` and `cost` are what was lost in this log; `saves` is the difference of two replays, None where unpriced.

    `monthly` is `cost` at this log's rate over 30 days, None for a log of no duration. `example` is one of the
    requests, `proven` whether bodies show the cause (or usage alone suggests it).
    """

    code: Code
    requests: int
    tokens: int
    cost: Decimal | None
    saves: Decimal | None
    monthly: Decimal | None
    where: Where | None
    change: Change
    example: Source
    proven: bool = True
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens and money over all requests that have them. `hit_rate` is read / prompt tokens, None without tokens.

    `unpriced` counts the requests whose price is unknown and that `cost` therefore leaves out, with the reasons.
    """

    prompt_tokens: int
    read: int
    written: Mapping[str, int]
    fresh: int
    output: int
    cost: Decimal
    requests: int
    unpriced: Mapping[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float | None:
        return self.read / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The same log under another policy. `low` and `high` bound `cost` where a rule is uncertain."""

    name: str
    text: str
    cost: Decimal | None
    hit_rate: float | None
    low: Decimal | None = None
    high: Decimal | None = None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The whole result. `observed` is what providers reported, `rules` what the rulebooks give for the same requests;
    `groups` holds both by "model", "key", "conversation" and "hour".

    `best` is None where no body could be replayed or a price is unknown. `estimated` counts the requests whose tokens
    are an estimate, for want of usage, and `error_band` is the share by which that may be off either way; None for 0.
    """

    requests: int
    prompt_tokens: int
    seconds: float
    observed: Totals
    rules: Totals
    uncached: Decimal
    best: Decimal | None
    findings: tuple[Finding, ...]
    what_if: tuple[WhatIf, ...]
    residuals: Mapping[str, int]
    unread: tuple[Unread, ...]
    groups: Mapping[str, Mapping[str, tuple[Totals, Totals]]] = field(default_factory=dict)
    estimated: int = 0
    error_band: float | None = None
