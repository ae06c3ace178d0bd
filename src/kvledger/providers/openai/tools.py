"""Which of a request's tools the model is shown: `tool_choice` of both APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.providers.openai.checks import unsupported


def shown_tools(tools: Sequence[Mapping[str, Any]], choice: Any) -> tuple[Mapping[str, Any], ...]:
    """Of `tools`, in the form of Chat Completions, those that `choice` allows.

    With `none` the model must not call a tool; the sure way is not to tell it of any. To force a call is refused: this
    server cannot make a model write one.
    """
    if choice in (None, "auto"):
        return tuple(tools)
    if choice == "none":
        return ()
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _allowed(tools, choice)
    raise unsupported(
        "tool_choice", "A `tool_choice` other than `none`, `auto` and `allowed_tools` is", "use one of them"
    )


def _allowed(tools: Sequence[Mapping[str, Any]], choice: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    nested = choice.get("allowed_tools")  # Chat Completions wraps what Responses has flat
    path, asked = ("tool_choice.allowed_tools", nested) if isinstance(nested, Mapping) else ("tool_choice", choice)
    if asked.get("mode") != "auto":
        raise unsupported(f"{path}.mode", f"A `{path}.mode` other than `auto` is", "use `auto`")
    if not isinstance(asked.get("tools"), list):
        raise InvalidRequestError(f"`{path}.tools` must be an array.", param=f"{path}.tools")
    names = {tool["function"]["name"] for tool in tools}
    allowed = set()
    for index, tool in enumerate(asked["tools"]):
        place = f"{path}.tools[{index}]"
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(name, str) or name not in names:
            raise InvalidRequestError(f"`{place}` names none of the request's `tools`.", param=place)
        allowed.add(name)
    return tuple(tool for tool in tools if tool["function"]["name"] in allowed)
