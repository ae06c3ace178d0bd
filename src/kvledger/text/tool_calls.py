"""The tool calls that models write into their text, found while the text still grows.

Three notations, as the chat templates of these models ask for them:

- Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, anywhere, any number of times;
- Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`;
- Llama 3: the answer is `{"name": ..., "parameters": {...}}`, several separated by semicolons, with or without
  `<|python_tag|>` before it.

The marks of Mistral and Llama are special tokens, which show as no text: there the answer begins with the bare JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

HERMES, MISTRAL, LLAMA = "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"
_MARKS = (HERMES, MISTRAL, LLAMA)
_CLOSE = "</tool_call>"

_BLANKS = " \n\r\t"
_BEHIND = _BLANKS + ";"

_VISIBLE = re.compile(r"\S")
_STRUCTURE = re.compile(r'["\\{}\[\]]')
_FIRST_KEY = re.compile(r'(\[\s*)?\{\s*"(?P<key>[^"\\]*)"')
_OPENING = re.compile(r'(\[\s*)?(\{\s*("[^"\\]*)?)?')
_KEYS = frozenset(("name", "arguments", "parameters", "function", "type", "id"))


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as the model wrote it; `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class ToolCallReader:
    """Splits one answer, piece by piece, into text and calls of the tools in `names`.

    Text is passed on as soon as it cannot be the beginning of a call. A call comes whole, once its JSON is complete;
    what looks like one and is none (broken JSON, a tool that nobody offered, an answer that ends within it) is text.
    Blanks around calls, and the semicolons between them, are dropped. Without names everything is text.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = frozenset(names)
        self._held = ""  # from the beginning of a possible call on
        self._mark: str | None = None  # the notation of the call that `_held` is, "" for bare JSON
        self._json: _Value | None = None
        self._blanks: str | None = _BLANKS  # at the beginning and behind a call, what may come before another

    def push(self, text: str) -> list[str | WrittenCall]:
        """Take more of the answer; return what is decided, texts joined, in order."""
        self._held += text
        found: list[str | WrittenCall] = []
        while self._step(found):
            pass
        return _joined(found)

    def finish(self) -> list[str | WrittenCall]:
        """The answer is over: return the rest."""
        found: list[str | WrittenCall] = []
        if self._mark is not None and self._json is not None and self._json.end is not None:
            self._close(found, self._json.end)  # a call whose closing tag was left out
            while self._step(found):
                pass
        if self._blanks != _BEHIND or self._held.strip(_BEHIND):
            found.append(self._held)
        self._held = ""
        return _joined(found)

    def _step(self, found: list[str | WrittenCall]) -> bool:
        """Decide about the next stretch of what is held; False if more text is needed for that."""
        if not self._held:
            return False
        if not self._names:
            found.append(self._held)
            self._held = ""
            return False
        return self._look_for_a_call(found) if self._mark is None else self._read_a_call(found)

    def _look_for_a_call(self, found: list[str | WrittenCall]) -> bool:
        if self._blanks is not None:
            begin = len(self._held) - len(self._held.lstrip(self._blanks))
            bare = _could_be_bare(self._held[begin:])
            if bare is None:
                return False
            if bare:
                self._mark, self._json = "", _Value(begin)
                return True
        places = [(at, mark) for mark in _MARKS if (at := self._held.find(mark)) >= 0]
        if not places:
            decided = len(self._held) - _undecided(self._held)
            if self._blanks is None or self._held[:decided].strip(self._blanks):
                self._show(found, decided)
            return False
        at, mark = min(places)
        if self._blanks is None or self._held[:at].strip(self._blanks):
            self._show(found, at)
            at = 0
        self._mark, self._json = mark, _Value(at + len(mark))
        return True

    def _read_a_call(self, found: list[str | WrittenCall]) -> bool:
        assert self._json is not None
        end = self._json.feed(self._held)
        if self._json.opening and self._json.opening not in ("[" if self._mark == MISTRAL else "{["):
            return self._give_up(found)
        if end is None:
            return False
        if self._mark == HERMES:
            rest = self._held[end:].lstrip()
            if not rest.startswith(_CLOSE):
                return False if _CLOSE.startswith(rest) else self._give_up(found)
            end = len(self._held) - len(rest) + len(_CLOSE)
        self._close(found, end)
        return True

    def _close(self, found: list[str | WrittenCall], end: int) -> None:
        """What is held up to `end` is a complete call, or after all none."""
        assert self._json is not None
        calls = _calls(self._held[self._json.begin : self._json.end], self._names)
        if not calls:
            self._give_up(found)
            return
        found += calls
        self._held, self._mark, self._json, self._blanks = self._held[end:], None, None, _BEHIND

    def _give_up(self, found: list[str | WrittenCall]) -> bool:
        """No call: what led up to its JSON is text, and the search goes on there."""
        assert self._json is not None
        until = max(1, self._json.begin)
        self._mark = self._json = None
        self._show(found, until)
        return True

    def _show(self, found: list[str | WrittenCall], count: int) -> None:
        text, self._held = self._held[:count], self._held[count:]
        if text:
            found.append(text)
            self._blanks = None


class _Value:
    """The end of a JSON value in a text that grows, each character looked at once. `begin` is where it may start."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.end: int | None = None
        self.opening = ""
        """Its first character, once there is one."""
        self._seen, self._depth, self._in_string = begin, 0, False

    def feed(self, text: str) -> int | None:
        """The index behind the value, or None while it is open. `text` begins with all that was fed before."""
        if not self.opening and (first := _VISIBLE.search(text, self.begin)):
            self.opening = first[0]
        while self.end is None and (found := _STRUCTURE.search(text, self._seen)):
            self._seen, mark = found.end(), found[0]
            if mark == "\\":
                if self._seen == len(text):  # what it escapes is still to come
                    self._seen -= 1
                    return None
                self._seen += 1
            elif mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    self.end = self._seen
        if self.end is None:
            self._seen = len(text)
        return self.end


def _could_be_bare(text: str) -> bool | None:
    """Whether an answer that begins like this, without blanks, is a bare call; None while that is open."""
    if (key := _FIRST_KEY.match(text)) is not None:
        return key["key"] in _KEYS
    return None if _OPENING.fullmatch(text) else False


def _undecided(text: str) -> int:
    """Length of the longest end of `text` that begins a mark without completing it."""
    lengths = range(min(max(map(len, _MARKS)) - 1, len(text)), 0, -1)
    return next((n for n in lengths if any(mark.startswith(text[-n:]) for mark in _MARKS)), 0)


def _calls(text: str, names: frozenset[str]) -> list[str | WrittenCall]:
    """The calls that a JSON text holds; none at all unless every one of them is sound."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    calls = [_call(item, names) for item in (value if isinstance(value, list) else [value])]
    return [call for call in calls if call is not None] if all(calls) else []


def _call(value: Any, names: frozenset[str]) -> WrittenCall | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):  # as OpenAI's API has it: {"type": "function", "function": {...}}
        value = value["function"]
    name = value.get("name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return WrittenCall(name, json.dumps(arguments, ensure_ascii=False))


def _joined(found: list[str | WrittenCall]) -> list[str | WrittenCall]:
    joined: list[str | WrittenCall] = []
    for piece in found:
        if isinstance(piece, str) and joined and isinstance(before := joined[-1], str):
            joined[-1] = before + piece
        elif piece:
            joined.append(piece)
    return joined
