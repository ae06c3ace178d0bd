"""What the tests of OpenAI's rules share: a token is a letter, a text of N tokens is quickly made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kvledger.providers.openai.rules import OpenAIRules
from tests.providers.letters import World

NOVEMBER = datetime(2026, 11, 12, 12, tzinfo=UTC).timestamp()
SEPTEMBER = datetime(2026, 9, 12, 12, tzinfo=UTC).timestamp()


def words(tokens: int, name: str = "a") -> str:
    """A text of that many tokens; another name gives another text from the first letter on."""
    return (f"{name}{'.' * 9}" * (tokens // 10 + 1))[:tokens]


def openai(at: float = NOVEMBER, platform: str = "openai", begins: float = 0.0) -> World:
    return World(OpenAIRules(platform), at=at, begins=begins)


def message(role: str, *texts: str, mark: Mapping[str, Any] | bool | None = None, kind: str = "text") -> dict[str, Any]:
    """A message of text blocks; `mark` puts a breakpoint on the last."""
    blocks: list[dict[str, Any]] = [{"type": kind, "text": text} for text in texts]
    if mark:
        blocks[-1]["prompt_cache_breakpoint"] = {"mode": "explicit", **(mark if isinstance(mark, Mapping) else {})}
    return {"role": role, "content": blocks}


def ask(*messages: Mapping[str, Any], model: str = "gpt-6-sol", **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": list(messages), **fields}
