"""The system text, messages and tools of a Messages request, checked and turned into a neutral chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import check_depth, convert
from kvledger.text import chat as neutral


class Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class Text(msgspec.Struct):
    text: str


class Thinking(msgspec.Struct):
    thinking: str
    signature: str = ""


class ToolUse(msgspec.Struct):
    id: str
    name: str
    input: dict[str, Any]


class ToolResult(msgspec.Struct):
    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None


_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")

Block = Mapping[str, Any]


def unsupported(param: str, what: str, instead: str) -> InvalidRequestError:
    """The error for something Anthropic knows and this server does not: what, and what to do `instead`."""
    return InvalidRequestError(f"{what} not supported by this server: {instead}.", param=param)


def read_system(system: str | list[dict[str, Any]] | None) -> Iterator[neutral.Message]:
    """The system text as a message, if there is any."""
    text = system if isinstance(system, str) else "\n".join(_texts(system or [], "system"))
    if text:
        yield neutral.Message("system", text, "system")


def read_messages(messages: Sequence[Message]) -> Iterator[neutral.Message]:
    """The messages in order, each tool result as one of its own. Raises `InvalidRequestError` as the API would."""
    if not messages:
        raise InvalidRequestError("`messages` must hold at least one message.", param="messages")
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [{"type": "text", "text": blocks}]
        if not blocks or blocks == [{"type": "text", "text": ""}]:
            raise InvalidRequestError(f"`{path}.content` must not be empty.", param=f"{path}.content")
        match message.role:
            case "user":
                yield from _question(blocks, path)
            case "assistant":
                yield _answer(blocks, path)
            case "system":
                yield neutral.Message("system", "\n".join(_texts(blocks, f"{path}.content")), path)
            case role:
                raise InvalidRequestError(
                    f"`{path}.role` must be user, assistant or system, not {role[:40]!r}.", param=f"{path}.role"
                )
    if messages[-1].role == "assistant":
        raise unsupported(
            "messages", "Continuing an assistant message that ends `messages` (prefill) is", "end with a user message"
        )
    _check_unique(messages)
    _check_pairs(messages)


def read_tools(tools: Sequence[dict[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Tool definitions in the form that chat templates render. Raises `InvalidRequestError` as the API would."""
    names: dict[str, str] = {}
    for index, definition in enumerate(tools):
        path = f"tools[{index}]"
        kind = definition.get("type") or "custom"
        if kind != "custom":
            raise unsupported(f"{path}.type", f"A tool of type `{kind!s:.60}` (`{path}`) is", "define it with a schema")
        tool = convert(definition, Tool, path)
        if not _TOOL_NAME.fullmatch(tool.name):
            raise InvalidRequestError(
                f"`{path}.name` must be 1 to 128 letters, digits, _ or -, not {tool.name[:40]!r}.", param=f"{path}.name"
            )
        if (first := names.setdefault(tool.name, path)) != path:
            raise InvalidRequestError(
                f"`{path}` has the name {tool.name}, which `{first}` has already: names of tools must be unique.",
                param=f"{path}.name",
            )
        described = {} if tool.description is None else {"description": tool.description}
        yield {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema}}


def _question(blocks: Sequence[Block], path: str) -> Iterator[neutral.Message]:
    texts: list[str] = []
    for block, place in _placed(blocks, f"{path}.content"):
        if block.get("type") == "tool_result":
            if texts:
                yield neutral.Message("user", "\n".join(texts), path)
                texts = []
            result = convert(block, ToolResult, place)
            content = result.content if isinstance(result.content, str) else ""
            if isinstance(result.content, list):
                content = "\n".join(_texts(result.content, f"{place}.content"))
            yield neutral.Message("tool", content, place, {"tool_call_id": result.tool_use_id})
        else:
            texts.append(_text(block, place))
    if texts:
        yield neutral.Message("user", "\n".join(texts), path)


def _answer(blocks: Sequence[Block], path: str) -> neutral.Message:
    """An earlier turn of the model. Templates that know thinking find it under the name they use."""
    texts, thoughts, calls = [], [], []
    for block, place in _placed(blocks, f"{path}.content"):
        match block.get("type"):
            case "thinking":
                thoughts.append(convert(block, Thinking, place).thinking)
            case "redacted_thinking":
                pass  # encrypted: nobody here can read it
            case "tool_use":
                use = convert(block, ToolUse, place)
                function = {"name": use.name, "arguments": use.input}
                calls.append({"id": use.id, "type": "function", "function": function})
            case _:
                texts.append(_text(block, place))
    fields: dict[str, Any] = {"tool_calls": calls} if calls else {}
    if thoughts:
        fields["reasoning_content"] = "\n".join(thoughts)
    return neutral.Message("assistant", "\n".join(texts), path, fields)


def _texts(blocks: Sequence[Block], path: str) -> list[str]:
    return [_text(block, place) for block, place in _placed(blocks, path)]


def _text(block: Block, path: str) -> str:
    """The text of a block that is one: plain text, a search result, or a document given as text."""
    match block.get("type"):
        case "text":
            return convert(block, Text, path).text
        case "document" if _source(block) == "text":
            _refuse_citations(block, path)
            return convert(block["source"].get("data"), str, f"{path}.source.data")
        case "search_result":
            _refuse_citations(block, path)
            place = f"{path}.content"
            return "\n".join(_texts(convert(block.get("content"), list[dict[str, Any]], place), place))
        case "image":
            raise unsupported(f"{path}.type", f"An image (`{path}`) is", "the model reads text only, so send text")
        case "document":
            raise unsupported(
                f"{path}.source.type", f"A document that is not plain text (`{path}`) is", "send its text"
            )
        case None:
            raise InvalidRequestError(f"`{path}.type` is required and missing.", param=f"{path}.type")
        case kind:
            raise unsupported(f"{path}.type", f"Content of type `{kind!s:.60}` (`{path}`) is", "send text")


def _source(block: Block) -> Any:
    source = block.get("source")
    return source.get("type") if isinstance(source, Mapping) else None


def _refuse_citations(block: Block, path: str) -> None:
    citations = block.get("citations")
    if isinstance(citations, Mapping) and citations.get("enabled"):
        raise unsupported(f"{path}.citations", f"Citations (`{path}`) are", "leave them out")


def _placed(blocks: Sequence[Block], path: str) -> Iterator[tuple[Block, str]]:
    for index, block in enumerate(blocks):
        check_depth(block, f"{path}[{index}]")
        yield block, f"{path}[{index}]"


def _check_unique(messages: Sequence[Message]) -> None:
    """No two tool uses have the same id."""
    seen: dict[str, str] = {}
    for index, message in enumerate(messages):
        blocks = message.content if message.role == "assistant" and isinstance(message.content, list) else ()
        for place, block in enumerate(blocks):
            path = f"messages[{index}].content[{place}]"
            if block.get("type") == "tool_use" and (first := seen.setdefault(block["id"], path)) != path:
                raise InvalidRequestError(
                    f"`{path}` has the id {block['id'][:80]}, which `{first}` has already: ids of tool uses must be"
                    " unique.",
                    param=f"{path}.id",
                )


def _check_pairs(messages: Sequence[Message]) -> None:
    """Every tool use has its result in the very next message, and no result stands without its use."""
    for index, message in enumerate(messages):
        used = _ids(message, "assistant", "tool_use", "id")
        following = messages[index + 1] if index + 1 < len(messages) else None
        answered = _ids(following, "user", "tool_result", "tool_use_id") if following else {}
        for use in used:
            if use not in answered:
                place = f"messages[{index}].content[{used[use]}]"
                raise InvalidRequestError(
                    f"`{place}` is a `tool_use` with id {use[:80]} that has no `tool_result` in the next message.",
                    param=place,
                )
        before = _ids(messages[index - 1], "assistant", "tool_use", "id") if index else {}
        results = _ids(message, "user", "tool_result", "tool_use_id")
        for result in results:
            if result not in before:
                place = f"messages[{index}].content[{results[result]}]"
                raise InvalidRequestError(
                    f"`{place}` is a `tool_result` for {result[:80]}, which is no `tool_use` of the message before.",
                    param=f"{place}.tool_use_id",
                )


def _ids(message: Message, role: str, kind: str, name: str) -> dict[str, int]:
    """The ids of a message's blocks of one kind, with their places; both have been checked."""
    if message.role != role or isinstance(message.content, str):
        return {}
    return {block[name]: place for place, block in enumerate(message.content) if block.get("type") == kind}
