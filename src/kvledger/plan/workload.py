"""A workload: who asks what, how often, and how much of it is the same each time; and the requests that makes."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from kvledger.errors import PlanError
from kvledger.providers.bodies import Said

CHARACTERS = 4
"""Characters of made-up text per token."""

MOST_REQUESTS = 5_000
MOST_PROMPT = 2_000_000
"""Tokens of one prompt."""
MOST_TOKENS = 300_000_000
"""Tokens of all simulated prompts."""
_MOST = {"hours": 1_000.0, "hours_per_month": 744.0, "gap_seconds": 7 * 86_400.0, "first_token_seconds": 3_600.0}


class Advice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is commonly advised for such a workload. `cache_saves`: the cache saves at least `share` of the cost.
    `batch_adds`: a batch saves at least `share` of what is left with the cache."""

    text: str
    claim: Literal["cache_saves", "batch_adds"]
    share: float


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Token counts per piece. `hours` of it are simulated and stand for `hours_per_month`.

    Each conversation has `turns`, `gap_seconds` apart; the prompt is the shared text, one of `documents`, what is the
    user's own, then questions and answers so far. `fan_out` asks each question so many times at once, differing in the
    question only. `batch` says that answers may wait a day. A response begins after `first_token_seconds`.
    """

    title: str = "Workload"
    shared_tokens: int = 0
    documents: int = 0
    document_tokens: int = 0
    user_tokens: int = 0
    question_tokens: int = 50
    answer_tokens: int = 200
    turns: int = 1
    gap_seconds: float = 30.0
    fan_out: int = 1
    conversations_per_hour: float = 10.0
    hours: float = 1.0
    hours_per_month: float = 720.0
    first_token_seconds: float = 2.0
    batch: bool = False
    advice: Advice | None = None

    def __post_init__(self) -> None:
        least = dict.fromkeys(("question_tokens", "answer_tokens", "turns", "fan_out"), 1)
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            lowest, highest = least.get(name, 0), _MOST.get(name, 1e9)
            if not (math.isfinite(value) and lowest <= value <= highest):
                raise PlanError(f"{name} is {value}: it must be a number from {lowest} to {highest:,.0f}.")
        for name in ("hours", "hours_per_month", "conversations_per_hour"):
            if not getattr(self, name):
                raise PlanError(f"{name} is 0: a workload without requests costs nothing.")
        if bool(self.documents) != bool(self.document_tokens):
            raise PlanError("`documents` and `document_tokens` go together: give both, or neither.")
        if self.num_conversations * self.turns * self.fan_out > MOST_REQUESTS:
            raise PlanError(
                f"This workload makes {self.num_conversations * self.turns * self.fan_out} requests and {MOST_REQUESTS}"
                " are the most: simulate fewer `hours`."
            )
        opening = self.shared_tokens + self.document_tokens + self.user_tokens + self.question_tokens
        turn = self.question_tokens + self.answer_tokens
        if opening + (self.turns - 1) * turn > MOST_PROMPT:
            raise PlanError(
                f"The last prompt would have {opening + (self.turns - 1) * turn:,} tokens and {MOST_PROMPT:,} are the"
                " most: give fewer `turns`, or fewer tokens of each kind."
            )
        tokens = self.num_conversations * self.fan_out * self.turns * (opening + (self.turns - 1) * turn // 2)
        if tokens > MOST_TOKENS:
            raise PlanError(
                f"The simulated prompts would have {tokens:,} tokens and {MOST_TOKENS:,} are the most: simulate fewer"
                " `hours`."
            )

    @property
    def num_conversations(self) -> int:
        """In the simulated hours; at least one."""
        return max(1, round(self.conversations_per_hour * self.hours))

    @property
    def months(self) -> float:
        """How many times the simulated hours make a month."""
        return self.hours_per_month / self.hours


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: when (seconds from the start), whose, and what. The first `stable` texts of the first message are
    the same in every request of the conversation, and those of `system` in all."""

    at: float
    conversation: int
    system: tuple[str, ...]
    messages: tuple[Said, ...]
    stable: int


def requests(workload: Workload, *, compact_at: int | None = None, compact_to: int = 0) -> Iterator[Asked]:
    """Every request of the simulated hours, in order of time; the same each time.

    Conversations begin evenly spread. With `compact_at`, a history of more tokens than that is replaced by a summary of
    `compact_to` tokens before the next question.
    """
    spacing = workload.hours * 3600 / workload.num_conversations
    turns = [
        (conversation * spacing + turn * workload.gap_seconds, conversation, turn)
        for conversation in range(workload.num_conversations)
        for turn in range(workload.turns)
    ]
    for at, conversation, turn in sorted(turns):
        for branch in range(workload.fan_out):
            yield _asked(workload, at, conversation, turn, branch, compact_at, compact_to)


def _asked(
    workload: Workload, at: float, conversation: int, turn: int, branch: int, compact_at: int | None, compact_to: int
) -> Asked:
    opening = (
        [text("document", conversation % workload.documents, workload.document_tokens)] if workload.documents else []
    )
    if workload.user_tokens:
        opening.append(text("user", conversation, workload.user_tokens))
    first, summaries = 0, 0
    if compact_at is not None:
        for done in range(1, turn + 1):
            history = (done - first) * (workload.question_tokens + workload.answer_tokens) + bool(
                summaries
            ) * compact_to
            if history > compact_at:
                first, summaries = done, summaries + 1
    said: list[Said] = []
    for past in range(first, turn):
        said.append(Said("user", (text(f"question {past} of", conversation, workload.question_tokens),)))
        said.append(Said("assistant", (text(f"answer {past} of", conversation, workload.answer_tokens),)))
    asks = f"question {turn} of" if branch == 0 else f"branch {branch} of question {turn} of"
    said.append(Said("user", (text(asks, conversation, workload.question_tokens),)))
    if summaries:
        opening.append(text(f"summary {first} of", conversation, compact_to))
    said[0] = Said("user", (*opening, *said[0].texts))
    shared = (text("shared", 0, workload.shared_tokens),) if workload.shared_tokens else ()
    return Asked(at, conversation, shared, tuple(said), len(opening))


def text(kind: str, number: int, tokens: int) -> str:
    """Made-up text of `tokens` tokens at `CHARACTERS` each, that differs from any other from its first word on."""
    unit = f"{kind} {number}. "
    length = tokens * CHARACTERS
    return (unit * (length // len(unit) + 1))[:length]


class Estimate:
    """Counts made-up text."""

    def count(self, text: str) -> int:
        """The tokens of `text`."""
        return -(-len(text) // CHARACTERS)


def preset_names() -> list[str]:
    """The workloads that come with the program."""
    return sorted(entry.name.removesuffix(".toml") for entry in _presets().iterdir() if entry.name.endswith(".toml"))


def preset(name: str) -> Workload:
    """A workload that comes with the program; raises `PlanError` with near names for an unknown one."""
    if name not in preset_names():
        near = get_close_matches(name, preset_names(), n=2) or preset_names()
        raise PlanError(f"There is no preset {name!r}: use {' or '.join(near)}.")
    return _decoded((_presets() / f"{name}.toml").read_text(encoding="utf-8"), name)


def read_workload(path: Path) -> Workload:
    """A workload from a TOML file; raises `PlanError` that names the file and the field."""
    try:
        written = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read: {error}.") from None
    return _decoded(written, str(path))


def _decoded(written: str, where: str) -> Workload:
    try:
        return msgspec.convert(tomllib.loads(written), Workload)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PlanError(f"{where} is no workload: {error}.") from None
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from None


def _presets() -> Path:
    return Path(str(files("kvledger.plan"))) / "presets"
