"""A Messages body as the cache reads it: tools, then system, then messages, one part per block.

What the API leaves out of the prefix is left out here: tools with `defer_loading` (search appends them later), and on
models that strip it the thinking before the last ordinary user content. Web search and web fetch are rendered with the
system prompt, so they stand behind all other tools, where turning them on or off spares those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.anthropic.marks import THINKING, explicit_mark, refuse_nested_marks
from kvledger.providers.decode import check_depth
from kvledger.providers.prompt import Level, Part

MEDIA_TOKENS = 1_600
"""What an image or a file counts as: about the most an image takes. An estimate, since only its digest is read."""

_WEB = ("web_search_", "web_fetch_")

Body = Mapping[str, Any]


def read_parts(body: Body, count: Callable[[str], int], *, strips_thinking: bool = False) -> tuple[Part, ...]:
    """The parts of `body` with their explicit marks; `count` gives the tokens of a text.

    Raises `InvalidRequestError` where a mark stands on what cannot carry one, or where the body is not one.
    """
    for name in ("tools", "system", "messages"):
        check_depth(body.get(name), name)
    tools = list(_tools(body, count))
    return (
        *(part for part in tools if part.level is Level.TOOLS),
        *(part for part in tools if part.level is Level.SYSTEM),
        *_system(body, count),
        *_messages(body, count, strips_thinking),
    )


def deferred_tools(body: Body) -> list[Any]:
    """The tools that are no part of the prefix."""
    return [tool for tool, _ in _objects(body.get("tools"), "tools") if tool.get("defer_loading")]


def shows_image(part: Part) -> bool:
    """Whether an image stands in a part, or in a tool result that is one."""
    return part.kind == "image" or (part.kind == "tool_result" and '"type":"image"' in part.content)


_PLAIN_TEXT = {"type", "text"}


def _tools(body: Body, count: Callable[[str], int]) -> Iterator[Part]:
    for tool, path in _objects(body.get("tools"), "tools"):
        kind = str(tool.get("type") or "custom")
        if tool.get("defer_loading"):
            _refuse_unseen_mark(tool, path)
        elif kind == "mcp_toolset" and tool.get("tools"):
            yield from _toolset(tool, path, count)
        else:
            level = Level.SYSTEM if kind.startswith(_WEB) else Level.TOOLS
            yield _part(tool, path, level, "tool", "", count)


def _toolset(toolset: Body, path: str, count: Callable[[str], int]) -> Iterator[Part]:
    """The pinned tools of an MCP server, one part each; the set's mark lands on the last of them."""
    default, configs = toolset.get("default_config") or {}, toolset.get("configs") or {}
    shown = []
    for tool, place in _objects(toolset["tools"], f"{path}.tools"):
        config = {**default, **(configs.get(tool.get("name")) or {})}
        if config.get("enabled", True) and not config.get("defer_loading"):
            shown.append(({"mcp_server_name": toolset.get("mcp_server_name"), **tool}, place))
    if not shown:
        _refuse_unseen_mark(toolset, path)
    for number, (tool, place) in enumerate(shown, 1):
        mark = {"cache_control": toolset.get("cache_control")} if number == len(shown) else {}
        yield _part({**tool, **mark}, place, Level.TOOLS, "tool", "", count)


def _refuse_unseen_mark(tool: Body, path: str) -> None:
    if tool.get("cache_control") is not None:
        raise InvalidRequestError(
            f"`{path}` is loaded later (`defer_loading`), so there is no place in the prefix for its `cache_control`:"
            " mark another tool.",
            param=f"{path}.cache_control",
        )


def _system(body: Body, count: Callable[[str], int]) -> Iterator[Part]:
    system = body.get("system")
    if isinstance(system, str):
        if system:
            yield _part({"type": "text", "text": system}, "system", Level.SYSTEM, "text", "system", count)
        return
    for block, path in _objects(system, "system"):
        yield _part(block, path, Level.SYSTEM, _kind(block), "system", count)


def _messages(body: Body, count: Callable[[str], int], strips_thinking: bool) -> Iterator[Part]:
    blocks: list[tuple[Body, str, str]] = []
    ordinary = -1  # the last block of user content that is no tool result
    for message, path in _objects(body.get("messages"), "messages"):
        role, content = str(message.get("role")), message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
            places = [f"{path}.content"]
        else:
            places = [place for _, place in _objects(content, f"{path}.content")]
        for block, place in zip(content or (), places, strict=True):
            if role == "user" and _kind(block) != "tool_result":
                ordinary = len(blocks)
            blocks.append((block, place, role))
    for number, (block, place, role) in enumerate(blocks):
        if strips_thinking and number < ordinary and _kind(block) in THINKING:
            continue
        yield _part(block, place, Level.MESSAGES, _kind(block), role, count)


def _kind(block: Body) -> str:
    return str(block.get("type"))


def _part(block: Body, path: str, level: Level, kind: str, role: str, count: Callable[[str], int]) -> Part:
    if kind == "text" and block.keys() == _PLAIN_TEXT and isinstance(text := block["text"], str):
        return Part(path, level, kind, text, count(text), role)
    refuse_nested_marks(block, path)
    plain = {name: value for name, value in block.items() if name != "cache_control"}
    if plain.keys() == {"type", "text"} and isinstance(plain["text"], str) and kind == "text":
        content, media = plain["text"], 0
    else:
        shown, media = _without_data(plain)
        content = msgspec.json.encode(shown).decode()
    tokens = count(content) + media * MEDIA_TOKENS
    mark = explicit_mark(block, path, kind, content)
    return Part(path, level, kind, content, tokens, role, mark)


def _without_data(value: Any) -> tuple[Any, int]:
    """`value` with base64 data put as its digest, and how many pictures and files it holds."""
    if isinstance(value, list):
        pairs = [_without_data(item) for item in value]
        return [item for item, _ in pairs], sum(media for _, media in pairs)
    if not isinstance(value, dict):
        return value, 0
    if isinstance(data := value.get("data"), str) and value.get("type") == "base64":
        return {**value, "data": sha256(data.encode()).hexdigest()}, 1
    pairs = [_without_data(item) for item in value.values()]
    held = sum(media for _, media in pairs)
    if value.get("type") in ("image", "document") and not held and _is_remote(value.get("source")):
        held = 1
    return dict(zip(value, (item for item, _ in pairs), strict=True)), held


def _is_remote(source: Any) -> bool:
    return isinstance(source, dict) and source.get("type") in ("url", "file")


def _objects(value: Any, path: str) -> Iterator[tuple[Body, str]]:
    """Each object of a list with its path; nothing for a missing list."""
    if value is None:
        return
    if not isinstance(value, list):
        raise InvalidRequestError(f"`{path}` must be a list, not {type(value).__name__}.", param=path)
    for index, item in enumerate(value):
        if not isinstance(item, dict):
            raise InvalidRequestError(f"`{path}[{index}]` must be an object.", param=f"{path}[{index}]")
        yield item, f"{path}[{index}]"
