"""Bodies in OpenAI's format, which gateways log for every provider, as the provider itself was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.audit.readers.fields import Json, parsed

_ANTHROPIC = frozenset(("anthropic", "bedrock", "vertex-anthropic"))
_GEMINI = frozenset(("gemini", "vertex"))


def body_for(provider: str, api: str, body: Json) -> Json:
    """The body in the provider's own format: as it is, unless it is a Chat Completions body for Claude or Gemini."""
    if api != "chat" or not isinstance(body.get("messages"), list):
        return body
    if provider in _ANTHROPIC:
        return _messages(body)
    return _contents(body) if provider in _GEMINI else body


def _messages(body: Json) -> dict[str, Any]:
    system: list[Any] = []
    messages: list[dict[str, Any]] = []
    for message in body["messages"]:
        if not isinstance(message, Mapping):
            continue
        blocks = _blocks(message.get("content"))
        role = message.get("role")
        if role in ("system", "developer"):
            system += blocks
        elif role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": blocks}
            messages.append({"role": "user", "content": [result]})
        else:
            messages.append({"role": role, "content": [*blocks, *map(_tool_use, message.get("tool_calls") or ())]})
    rest = {name: value for name, value in body.items() if name not in ("messages", "tools")}
    tools = [_tool(tool) for tool in body.get("tools") or ()]
    return {
        **rest,
        **({"tools": tools} if tools else {}),
        **({"system": system} if system else {}),
        "messages": messages,
    }


def _contents(body: Json) -> dict[str, Any]:
    system: list[Any] = []
    contents: list[dict[str, Any]] = []
    for message in body["messages"]:
        if not isinstance(message, Mapping):
            continue
        parts = [{"text": b["text"]} if "text" in b else b for b in _blocks(message.get("content"))]
        if message.get("role") in ("system", "developer"):
            system += parts
            continue
        calls = [{"functionCall": _function(call)} for call in message.get("tool_calls") or ()]
        contents.append({"role": "model" if message.get("role") == "assistant" else "user", "parts": parts + calls})
    rest = {name: value for name, value in body.items() if name not in ("messages", "tools")}
    tools = [_function(tool) for tool in body.get("tools") or ()]
    return {
        **rest,
        **({"tools": [{"functionDeclarations": tools}]} if tools else {}),
        **({"systemInstruction": {"parts": system}} if system else {}),
        "contents": contents,
    }


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [block if isinstance(block, dict) else {"type": "text", "text": str(block)} for block in content or ()]


def _function(call: Any) -> Any:
    return call["function"] if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping) else call


def _tool_use(call: Any) -> dict[str, Any]:
    made = _function(call)
    made = made if isinstance(made, Mapping) else {}
    arguments = parsed(made.get("arguments"))
    identity = call.get("id") if isinstance(call, Mapping) else None
    given = arguments if isinstance(arguments, dict) else {}
    return {"type": "tool_use", "id": identity, "name": made.get("name"), "input": given}


def _tool(tool: Any) -> Any:
    made = _function(tool)
    if not isinstance(made, Mapping) or "parameters" not in made:
        return tool
    marked = tool.get("cache_control") or made.get("cache_control")
    return {
        "name": made.get("name"),
        **({"description": made["description"]} if "description" in made else {}),
        "input_schema": made["parameters"],
        **({"cache_control": marked} if marked else {}),
    }
