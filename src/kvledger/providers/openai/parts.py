"""A Chat Completions or Responses body as OpenAI's cache reads it: tools, then instructions, then the messages.

A text is the same whether it was sent as a string or as a block, by one API or the other. What only serves the API
(ids and states of output items) is left out. Each message is closed by a part of its own without text or tokens, so
that a prefix that ends with a message differs from one that ends with the last text in it: the message may go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.providers.compatible import MEDIA_TOKENS, canonical, without_media
from kvledger.providers.decode import check_depth
from kvledger.providers.prompt import Breakpoint, Level, Part
from kvledger.providers.rulebook import TokenCounter

END = "message_end"
"""The kind of the part that closes a message."""

MARK = "prompt_cache_breakpoint"
MARKABLE = frozenset(("text", "image_url", "input_audio", "file", "input_text", "input_image", "input_file"))

_LEADING = ("system", "developer")
_TEXTS = ("text", "input_text", "output_text")
_OF_A_TEXT = {"type", "text", "annotations", "logprobs", MARK}
_OF_THE_API = frozenset(("id", "status"))

Body = Mapping[str, Any]


def read_parts(
    body: Body, counter: TokenCounter, api: str, *, lifetimes: Mapping[str, float], ttl: str
) -> tuple[Part, ...]:
    """The parts of `body` with their breakpoints; `ttl` is that of a breakpoint which names none.

    Raises `InvalidRequestError` where the body is not one of that API, or a breakpoint is not one of `lifetimes` or
    stands where none can.
    """
    for name in ("messages", "input", "tools"):
        check_depth(body.get(name), name)
    reader = _Reader(counter, lifetimes, ttl)
    return tuple((*reader.tools(body), *(reader.input(body) if api == "responses" else reader.messages(body))))


class _Reader:
    def __init__(self, counter: TokenCounter, lifetimes: Mapping[str, float], ttl: str) -> None:
        self._counter, self._lifetimes, self._ttl = counter, lifetimes, ttl

    def tools(self, body: Body) -> Iterator[Part]:
        """Tools with `defer_loading` are appended by a search later, so they are no part of the prefix."""
        for tool, path in _objects(body.get("tools"), "tools"):
            self._refuse_mark(tool, path, "a tool")
            if not tool.get("defer_loading"):
                yield self._json(tool, path, Level.TOOLS, "tool", "")

    def messages(self, body: Body) -> Iterator[Part]:
        if not isinstance(body.get("messages"), list):
            raise InvalidRequestError("`messages` must be an array.", param="messages")
        leading = True
        for message, path in _objects(body["messages"], "messages"):
            role = str(message.get("role", "user"))
            leading = leading and role in _LEADING
            level = Level.SYSTEM if leading else Level.MESSAGES
            fields = {name: value for name, value in message.items() if value is not None}
            calls = fields.pop("tool_calls", None)
            beside = {name: value for name, value in fields.items() if name not in ("role", "content")}
            if beside:
                yield self._json(beside, path, level, "fields", role)
            yield from self._content(message.get("content"), f"{path}.content", level, role)
            for call, place in _objects(calls, f"{path}.tool_calls"):
                yield self._json(call, place, level, "tool_call", role)
            yield Part(path, level, END, "", 0, role)

    def input(self, body: Body) -> Iterator[Part]:
        instructions, items = body.get("instructions"), body.get("input")
        if isinstance(instructions, str) and instructions:
            yield self._text(instructions, "instructions", Level.SYSTEM, "developer")
            yield Part("instructions", Level.SYSTEM, END, "", 0, "developer")
        if isinstance(items, str):
            yield self._text(items, "input", Level.MESSAGES, "user")
            yield Part("input", Level.MESSAGES, END, "", 0, "user")
            return
        leading = True
        for item, path in _objects(items, "input"):
            kind, role = str(item.get("type") or "message"), str(item.get("role") or "")
            leading = leading and kind == "message" and role in _LEADING
            level = Level.SYSTEM if leading else Level.MESSAGES
            if kind == "message":
                yield from self._content(item.get("content"), f"{path}.content", level, role)
                yield Part(path, level, END, "", 0, role)
            elif kind.endswith("_output"):
                beside = {name: value for name, value in item.items() if name not in {"output", *_OF_THE_API}}
                yield self._json(beside, path, level, kind, "tool")
                yield from self._content(item.get("output"), f"{path}.output", level, "tool")
                yield Part(path, level, END, "", 0, "tool")
            else:
                beside = {name: value for name, value in item.items() if name not in _OF_THE_API}
                yield self._json(beside, path, level, kind, role or "assistant")

    def _content(self, content: Any, path: str, level: Level, role: str) -> Iterator[Part]:
        if isinstance(content, str):
            yield self._text(content, path, level, role)
            return
        if isinstance(content, Mapping):  # the output of a tool that is not one of texts
            yield self._json(content, path, level, "output", role)
            return
        for block, place in _objects(content, path):
            yield self._block(block, place, level, role)

    def _block(self, block: Body, path: str, level: Level, role: str) -> Part:
        kind = str(block.get("type", ""))
        if role == "assistant":
            self._refuse_mark(block, path, "the assistant's output")
        elif kind not in MARKABLE:
            self._refuse_mark(block, path, f"a part of type `{kind}`")
        mark = self._mark(block.get(MARK), f"{path}.{MARK}")
        if kind in _TEXTS and isinstance(text := block.get("text"), str) and block.keys() <= _OF_A_TEXT:
            return self._text(text, path, level, role, mark)
        plain = {name: value for name, value in block.items() if name != MARK}
        return self._json(plain, path, level, kind, role, mark)

    def _text(self, text: str, path: str, level: Level, role: str, mark: Breakpoint | None = None) -> Part:
        return Part(path, level, "text", text, self._counter.count(text), role, mark)

    def _json(self, value: Body, path: str, level: Level, kind: str, role: str, mark: Breakpoint | None = None) -> Part:
        shown, media = without_media(value)
        content = canonical(shown)
        return Part(path, level, kind, content, self._counter.count(content) + media * MEDIA_TOKENS, role, mark)

    def _mark(self, mark: Any, path: str) -> Breakpoint | None:
        if mark is None:
            return None
        if not isinstance(mark, Mapping) or mark.get("mode") != "explicit":
            raise InvalidRequestError(f'`{path}` must be {{"mode": "explicit"}}, with a `ttl` or without.', param=path)
        ttl = mark.get("ttl") or self._ttl
        if ttl not in self._lifetimes:
            known = " or ".join(self._lifetimes)
            raise InvalidRequestError(f"`{path}.ttl` must be {known}, not {ttl!r:.40}.", param=f"{path}.ttl")
        return Breakpoint(str(ttl))

    @staticmethod
    def _refuse_mark(value: Body, path: str, what: str) -> None:
        if value.get(MARK) is not None:
            raise InvalidRequestError(
                f"`{path}` is {what}, which cannot carry `{MARK}`: mark a text, an image or a file of the input.",
                param=f"{path}.{MARK}",
            )


def _objects(value: Any, path: str) -> Iterator[tuple[Body, str]]:
    """Each object of a list with its path; nothing for a missing list."""
    if value is None:
        return
    if not isinstance(value, list | tuple):
        raise InvalidRequestError(f"`{path}` must be an array, not {type(value).__name__}.", param=path)
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise InvalidRequestError(f"`{path}[{index}]` must be an object.", param=f"{path}[{index}]")
        yield item, f"{path}[{index}]"
