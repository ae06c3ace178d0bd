"""Bodies of the Messages API for the tests of the rules. A token is a letter (`tests.providers.letters`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from kvledger.providers.anthropic.rules import AnthropicRules
from kvledger.providers.prompt import ProviderPrompt
from tests.providers.letters import Letters

MODEL = "claude-opus-5"  # caches from 512 tokens on
LONG = "x" * 600  # enough for that


def day(text: str) -> float:
    """Noon of a day, in UTC."""
    return datetime.fromisoformat(f"{text}T12:00:00+00:00").astimezone(UTC).timestamp()


def mark(ttl: str | None = None) -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral"} | ({"ttl": ttl} if ttl else {})}


def text(content: str, ttl: str | None = None, *, marked: bool = False) -> dict[str, Any]:
    return {"type": "text", "text": content} | (mark(ttl) if marked or ttl else {})


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": [text(block) if isinstance(block, str) else block for block in blocks]}


def assistant(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {**user(*blocks), "role": "assistant"}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "description": f"does {name}", "input_schema": {"type": "object"}, **fields}


def tool_use(id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "t", "input": {}, **fields}


def tool_result(id: str, content: Any = "done", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def thinking(content: str = "hmm") -> dict[str, Any]:
    return {"type": "thinking", "thinking": content, "signature": "s"}


def body(messages: Sequence[dict[str, Any]] | None = None, **fields: Any) -> dict[str, Any]:
    """A request; `None` values leave a field out."""
    whole = {"model": MODEL, "max_tokens": 100, "messages": list(messages or [user("hi")]), **fields}
    return {name: value for name, value in whole.items() if value is not None}


def blocks(count: int, *marked: int, length: int = 100) -> dict[str, Any]:
    """A request of `count` distinct blocks in one user message, marks on those numbered `marked`, from 1 on."""
    content = [text(f"{number:04}" * (length // 4), marked=number in marked) for number in range(1, count + 1)]
    return body([user(*content)])


def read(request: dict[str, Any], *, scope: str = "s", platform: str = "claude-api") -> ProviderPrompt:
    return AnthropicRules(platform).prompt(request, scope=scope, counter=Letters())
