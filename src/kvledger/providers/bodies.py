"""One conversation written as each provider's request body: what plans and explanations hand to a rulebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SYSTEM = -1
"""The message index of a mark in the system text."""

Place = tuple[int, int]
"""A message by its index (`SYSTEM` for the system text), and a text in it by its own."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message: who speaks, and its texts, each a content block of its own."""

    role: str
    texts: tuple[str, ...]


def compose(
    rules: str, model: str, system: Sequence[str], messages: Sequence[Said], marks: Mapping[Place, str] | None = None
) -> dict[str, Any]:
    """The body in the format that the rulebook `rules` reads; `marks` are the lifetimes of cache marks by their place.

    A mark where the provider's format has none is an error of the caller (`ValueError`).
    """
    marks = marks or {}
    match rules:
        case "anthropic" | "bedrock" | "vertex-anthropic":
            body: dict[str, Any] = {"model": model, "max_tokens": 1024}
            if system:
                body["system"] = _blocks(system, SYSTEM, marks, _cache_control)
            body["messages"] = [
                {"role": said.role, "content": _blocks(said.texts, index, marks, _cache_control)}
                for index, said in enumerate(messages)
            ]
            return body
        case "gemini" | "vertex":
            if marks:
                raise ValueError("a Gemini request carries no cache marks")
            contents = [
                {"role": "model" if said.role == "assistant" else said.role, "parts": _texts(said.texts)}
                for said in messages
            ]
            instruction = {"systemInstruction": {"parts": _texts(system)}} if system else {}
            return {"model": model, **instruction, "contents": contents}
        case "openai" | "azure" | "qwen":
            mark = _cache_control if rules == "qwen" else _breakpoint
            leading = [{"role": "system", "content": _blocks(system, SYSTEM, marks, mark)}] if system else []
            others = [
                {"role": said.role, "content": _blocks(said.texts, index, marks, mark)}
                for index, said in enumerate(messages)
            ]
            return {"model": model, "messages": [*leading, *others]}
    if marks:
        raise ValueError(f"a request to {rules} carries no cache marks")
    leading = [{"role": "system", "content": _blocks(system, SYSTEM, {}, _breakpoint)}] if system else []
    others = [
        {"role": said.role, "content": _blocks(said.texts, index, {}, _breakpoint)}
        for index, said in enumerate(messages)
    ]
    return {"model": model, "messages": [*leading, *others]}


def _texts(texts: Sequence[str]) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


def _blocks(texts: Sequence[str], message: int, marks: Mapping[Place, str], mark: Any) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": text, **(mark(marks[message, index]) if (message, index) in marks else {})}
        for index, text in enumerate(texts)
    ]


def _cache_control(ttl: str) -> dict[str, Any]:
    return {"cache_control": {"type": "ephemeral", "ttl": ttl}}


def _breakpoint(ttl: str) -> dict[str, Any]:
    return {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": ttl}}
