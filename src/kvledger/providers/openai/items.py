"""The input items of a Responses body, checked and turned into neutral messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import convert
from kvledger.providers.openai.checks import unsupported
from kvledger.providers.openai.messages import CalledFunction, ToolCall, read_call
from kvledger.text import chat as neutral


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class MessageItem(msgspec.Struct):
    role: str
    content: str | list[ContentPart]


class FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(msgspec.Struct):
    call_id: str
    output: str | list[ContentPart]


_ROLES = ("system", "developer", "user", "assistant")
_TEXTS = ("input_text", "output_text", "text")


def to_neutral(instructions: str | None, items: Sequence[Any], before: int) -> tuple[neutral.Message, ...]:
    """The messages of a conversation. The first `before` items came with earlier requests: their paths say so.

    Calls join the assistant message before them, as chat templates expect it. Reasoning items are not shown to the
    model: it cannot read another's, and its own it does not keep.
    """
    messages: list[neutral.Message] = []
    if instructions:
        messages.append(neutral.Message("system", instructions, "instructions"))
    for index, item in enumerate(items):
        path = f"previous_response.input[{index}]" if index < before else f"input[{index - before}]"
        if not isinstance(item, Mapping):
            raise InvalidRequestError(f"`{path}` must be an object.", param=path)
        kind = item.get("type") or "message"
        if kind == "message":
            messages.append(_message(convert(item, MessageItem, path), path))
        elif kind == "function_call":
            _add_call(messages, convert(item, FunctionCall, path), path)
        elif kind == "function_call_output":
            output = convert(item, FunctionCallOutput, path)
            content = _text(output.output, f"{path}.output")
            messages.append(neutral.Message("tool", content, path, {"tool_call_id": output.call_id}))
        elif kind != "reasoning":
            raise unsupported(
                f"{path}.type",
                f"An input item of type `{str(kind)[:40]}` (`{path}`) is",
                "send message, function_call, function_call_output or reasoning items",
            )
    if not messages:
        raise InvalidRequestError("`input` must hold at least one message.", param="input")
    return tuple(messages)


def _message(item: MessageItem, path: str) -> neutral.Message:
    if item.role not in _ROLES:
        raise InvalidRequestError(
            f"`{path}.role` must be {', '.join(_ROLES[:-1])} or {_ROLES[-1]}, not `{item.role}`.", param=f"{path}.role"
        )
    # Chat templates know no developer; OpenAI's own rule is that it replaces system.
    role = "system" if item.role == "developer" else item.role
    return neutral.Message(role, _text(item.content, f"{path}.content"), path)


def _add_call(messages: list[neutral.Message], item: FunctionCall, path: str) -> None:
    call = read_call(ToolCall(item.call_id, CalledFunction(item.name, item.arguments)), path)
    if messages and messages[-1].role == "assistant":
        last = messages.pop()
        calls = [*last.fields.get("tool_calls", ()), call]
        messages.append(neutral.Message("assistant", last.content, last.path, {**last.fields, "tool_calls": calls}))
    else:
        messages.append(neutral.Message("assistant", "", path, {"tool_calls": [call]}))


def _text(content: str | list[ContentPart], path: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        place = f"{path}[{index}]"
        if part.type not in _TEXTS:
            raise unsupported(f"{place}.type", f"Content of type `{part.type}` (`{place}`) is", "send texts only")
        if part.text is None:
            raise InvalidRequestError(f"`{place}.text` is required and missing.", param=f"{place}.text")
        texts.append(part.text)
    return "\n".join(texts)
