"""The messages of an OpenAI chat, checked and turned into neutral ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import check_depth
from kvledger.providers.openai.checks import unsupported
from kvledger.text import chat as neutral


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class Message(msgspec.Struct):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    audio: dict[str, Any] | None = None
    function_call: dict[str, Any] | None = None


_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


def to_neutral(messages: list[Message]) -> tuple[neutral.Message, ...]:
    if not messages:
        raise InvalidRequestError("`messages` must hold at least one message.", param="messages")
    return tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages))


def _message(message: Message, path: str) -> neutral.Message:
    if message.role not in ("system", "developer", "user", "assistant", "tool"):
        raise InvalidRequestError(
            f"`{path}.role` must be system, developer, user, assistant or tool, not `{message.role}`.",
            param=f"{path}.role",
        )
    for name in ("audio", "function_call", "refusal"):
        if getattr(message, name) is not None:
            raise unsupported(f"{path}.{name}", f"`{path}.{name}` is", "leave it out")
    if message.role == "tool" and message.tool_call_id is None:
        raise InvalidRequestError(
            f"`{path}.tool_call_id` is required in a message with role tool.", param=f"{path}.tool_call_id"
        )
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequestError(
            f"`{path}.tool_calls` may stand only in a message with role assistant.", param=f"{path}.tool_calls"
        )
    fields: dict[str, Any] = {}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        fields["tool_calls"] = [
            read_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    # Chat templates know no developer; OpenAI's own rule is that it replaces system.
    role = "system" if message.role == "developer" else message.role
    return neutral.Message(role, _content(message, f"{path}.content"), path, fields)


def _content(message: Message, path: str) -> str:
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role == "assistant" and message.tool_calls:
            return ""
        raise InvalidRequestError(
            f"`{path}` is required: only an assistant message with tool_calls may go without.", param=path
        )
    if not content:
        raise InvalidRequestError(f"`{path}` must hold at least one part.", param=path)
    texts = []
    for index, part in enumerate(content):
        if part.type != "text":
            raise unsupported(
                f"{path}[{index}].type", f"Content of type `{part.type}` (`{path}[{index}]`) is", "send text parts only"
            )
        if part.text is None:
            raise InvalidRequestError(f"`{path}[{index}].text` is required and missing.", param=f"{path}[{index}].text")
        texts.append(part.text)
    return "\n".join(texts)


def read_call(call: ToolCall, path: str) -> Mapping[str, Any]:
    """An earlier tool call as templates expect it: arguments as an object, or as text where they are not one."""
    if call.type != "function":
        raise unsupported(f"{path}.type", f"A tool call of type `{call.type}` (`{path}`) is", "use type `function`")
    arguments: Any
    try:
        arguments = _ARGUMENTS.decode(call.function.arguments)
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments  # a model may have written anything; OpenAI takes any text here
    check_depth(arguments, f"{path}.function.arguments")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
