"""Bodies in OpenAI's or Anthropic's format, as providers read them that took one over: tools, then the messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import check_depth
from kvledger.providers.prompt import Breakpoint, Level, Part
from kvledger.providers.rulebook import TokenCounter

MEDIA_TOKENS = 1_000
"""What a picture, a sound or a file counts as: an estimate, since only its digest is read."""

PROMPT = frozenset(("model", "messages", "input", "instructions", "system", "tools"))
"""The fields of a body that hold the prompt; all others are settings."""

Body = Mapping[str, Any]


def read_parts(body: Body, counter: TokenCounter, api: str, *, title: str) -> tuple[Part, ...]:
    """The parts of a body of the Chat Completions ("chat", the default), Responses or Messages API.

    A `cache_control` on a block becomes its breakpoint and is no part of its content. Raises `InvalidRequestError`
    where the body is not one of that API, or `title`'s provider has none of that name.
    """
    if api == "messages":
        from kvledger.providers.anthropic.parts import read_parts as read_blocks  # noqa: PLC0415 - the rarest format

        return read_blocks(body, counter.count)
    if api not in ("", "chat", "responses"):
        raise InvalidRequestError(f"{title}'s rules read bodies of the APIs chat, responses and messages, not {api!r}.")
    for name in ("messages", "input", "tools"):
        check_depth(body.get(name), name)
    tools = [_part(tool, path, Level.TOOLS, "tool", "", counter) for tool, path in _objects(body.get("tools"), "tools")]
    read = _input if api == "responses" else _chat
    return (*tools, *read(body, counter))


def settings(body: Body) -> dict[str, str]:
    """Every field beside the prompt, as canonical JSON by name."""
    return {
        name: msgspec.json.encode(value, order="sorted").decode()
        for name, value in body.items()
        if name not in PROMPT and value is not None
    }


def canonical(value: Any) -> str:
    """JSON in the order sent, which is the order that a provider renders."""
    return msgspec.json.encode(value).decode()


def _chat(body: Body, counter: TokenCounter) -> Iterator[Part]:
    if not isinstance(body.get("messages"), list):
        raise InvalidRequestError("`messages` must be an array.", param="messages")
    leading = True  # system messages at the start are the system prompt; later ones are messages like others
    for message, path in _objects(body["messages"], "messages"):
        role = str(message.get("role", "user"))
        leading = leading and role in ("system", "developer")
        level = Level.SYSTEM if leading else Level.MESSAGES
        yield from _blocks(message.get("content"), f"{path}.content", level, role, counter)
        beside = {
            name: value for name, value in message.items() if name not in ("role", "content") and value is not None
        }
        for call, place in _objects(beside.pop("tool_calls", None), f"{path}.tool_calls"):
            yield _part(call, place, level, "tool_call", role, counter)
        if beside:
            yield _part(beside, path, level, "fields", role, counter)


def _input(body: Body, counter: TokenCounter) -> Iterator[Part]:
    if isinstance(text := body.get("instructions"), str) and text:
        yield _text(text, "instructions", Level.SYSTEM, "system", counter)
    items = body.get("input")
    if isinstance(items, str):
        yield _text(items, "input", Level.MESSAGES, "user", counter)
        return
    leading = True
    for item, path in _objects(items, "input"):
        role = str(item.get("role", ""))
        leading = leading and role in ("system", "developer")
        level = Level.SYSTEM if leading else Level.MESSAGES
        if item.get("type", "message") == "message":
            yield from _blocks(item.get("content"), f"{path}.content", level, role, counter)
        else:
            yield _part(item, path, level, str(item["type"]), role, counter)


def _blocks(content: Any, path: str, level: Level, role: str, counter: TokenCounter) -> Iterator[Part]:
    if isinstance(content, str):
        yield _text(content, path, level, role, counter)
        return
    for block, place in _objects(content, path):
        yield _part(block, place, level, str(block.get("type", "")), role, counter)


def _text(text: str, path: str, level: Level, role: str, counter: TokenCounter) -> Part:
    return Part(path, level, "text", text, counter.count(text), role)


def _part(value: Body, path: str, level: Level, kind: str, role: str, counter: TokenCounter) -> Part:
    """One block. A text alone is the same whether sent as a string or as a block, with or without a mark."""
    plain = {name: item for name, item in value.items() if name != "cache_control"}
    mark = Breakpoint(_ttl(value["cache_control"], path)) if value.get("cache_control") is not None else None
    if isinstance(text := plain.get("text"), str) and plain.keys() <= {"type", "text"}:
        return Part(path, level, "text", text, counter.count(text), role, mark)
    shown, media = without_media(plain)
    content = canonical(shown)
    return Part(path, level, kind, content, counter.count(content) + media * MEDIA_TOKENS, role, mark)


def _ttl(mark: Any, path: str) -> str:
    if not isinstance(mark, dict) or mark.get("type") != "ephemeral":
        raise InvalidRequestError(
            f'`{path}.cache_control` must be {{"type": "ephemeral"}}.', param=f"{path}.cache_control"
        )
    return str(mark.get("ttl") or "5m")


def without_media(value: Any) -> tuple[Any, int]:
    """`value` with long encoded data put as its digest, and how many pieces of it there were."""
    if isinstance(value, str):
        encoded = value.startswith("data:") and len(value) > 256
        return (sha256(value.encode()).hexdigest(), 1) if encoded else (value, 0)
    if isinstance(value, list):
        pairs = [without_media(item) for item in value]
        return [item for item, _ in pairs], sum(media for _, media in pairs)
    if not isinstance(value, dict):
        return value, 0
    pairs = [
        (sha256(item.encode()).hexdigest(), 1) if name == "data" and isinstance(item, str) else without_media(item)
        for name, item in value.items()
    ]
    return dict(zip(value, (item for item, _ in pairs), strict=True)), sum(media for _, media in pairs)


def _objects(value: Any, path: str) -> Iterator[tuple[Body, str]]:
    """Each object of a list with its path; nothing for a missing list."""
    if value is None:
        return
    if not isinstance(value, list):
        raise InvalidRequestError(f"`{path}` must be an array, not {type(value).__name__}.", param=path)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidRequestError(f"`{path}[{index}]` must be an object.", param=f"{path}[{index}]")
        yield item, f"{path}[{index}]"
