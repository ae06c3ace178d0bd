"""Plain request logs: one request a line, with its tokens, or with its text.

    {"timestamp": 1760000000.5, "tokens": [1, 15, 8], "session_id": "a"}
    {"time": "2026-03-01T12:00:00Z", "messages": [{"role": "user", "content": "Hello"}]}
    {"body": {"model": "...", "input": "..."}}

The prompt may be under `body` or `request`. Text is encoded with a tokenizer if there is one. Otherwise four bytes of
UTF-8 count as one token, which is about right for English and is said in the notes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from kvledger.sim.formats.reader import LineError, Names, Reader, decoded, time_of
from kvledger.sim.trace import Record

BLOCK_SIZE = 16
TOKENS = ("tokens", "token_ids", "prompt_token_ids", "input_ids")
TEXTS = ("messages", "prompt", "input", "contents")
TIMES = ("timestamp", "time", "created", "created_at", "ts")
_SESSIONS = ("session_id", "conversation_id", "chat_id", "user")
_NESTED = ("body", "request")
_BYTES_PER_TOKEN = 4


class RequestLogReader(Reader):
    name = "request-log"
    tail = "The last block of a prompt may be partial; it takes a whole block of room, and only an equal one hits."

    def __init__(
        self,
        *,
        block_size: int | None,
        time_unit: float | None,
        encode: Callable[[str], Sequence[int]] | None,
    ) -> None:
        super().__init__(block_size or BLOCK_SIZE)
        self._given_unit = time_unit
        self._encode = encode
        self._blocks = Names()
        self._sessions = Names()

    def records(self, line: bytes) -> Iterator[Record]:
        record = decoded(line)
        prompt = prompt_of(record)
        if prompt is None:
            raise LineError(f"none of {', '.join(TOKENS + TEXTS)} is there")
        session = next((record[name] for name in _SESSIONS if isinstance(record.get(name), str | int)), None)
        data, width, num_tokens = self._data(prompt)
        ids = [self._blocks.number(data[start : start + width]) for start in range(0, len(data), width)]
        number = None if session is None else self._sessions.number(session)
        yield Record(ids, num_tokens, self._time(record), number)

    def _data(self, prompt: dict[str, Any]) -> tuple[bytes, int, int]:
        """The prompt's bytes, how many of them are a block, and how many tokens they are."""
        tokens = next((prompt[name] for name in TOKENS if name in prompt), None)
        if tokens is None:
            text = text_of(prompt)
            if self._encode is None:
                if not self.notes:
                    self.notes.append(
                        "There is no tokenizer: four bytes of text count as one token. Give --tokenizer for real ones."
                    )
                data = text.encode("utf-8", "surrogatepass")
                return data, self.block_size * _BYTES_PER_TOKEN, -(-len(data) // _BYTES_PER_TOKEN)
            tokens = self._encode(text)
        try:
            packed = array("q", tokens)
        except (TypeError, OverflowError):
            raise LineError("the tokens are not a list of whole numbers") from None
        return packed.tobytes(), self.block_size * packed.itemsize, len(packed)

    def _time(self, record: dict[str, Any]) -> float | None:
        name = next((name for name in TIMES if record.get(name) is not None), None)
        if name is None:
            return None
        value = record[name]
        if isinstance(value, str) and not value.replace(".", "", 1).isdigit():
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                raise LineError(f"{name} is not a time") from None
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        time = time_of(record, name, 1.0)
        assert time is not None, "the field is there"
        return time * (self._given_unit or _unit(time))


def prompt_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """The object in a line that has the prompt: the line's own, or one in it."""
    for candidate in (record, *(record[name] for name in _NESTED if isinstance(record.get(name), dict))):
        if any(name in candidate for name in TOKENS + TEXTS):
            return dict(candidate)
    return None


def text_of(prompt: dict[str, Any]) -> str:
    """Everything that the model reads, in the order in which chat templates put it: tools, system, messages."""
    parts = [_text(prompt[name]) for name in ("tools", "system", "instructions") if prompt.get(name)]
    for name in TEXTS:
        value = prompt.get(name)
        if isinstance(value, list):
            parts += [
                f"{each.get('role', '')}\n{_text(each.get('content', each))}" if isinstance(each, dict) else _text(each)
                for each in value
            ]
        elif value is not None:
            parts.append(_text(value))
    return "\n".join(parts)


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _unit(time: float) -> float:
    """The unit of a time since 1970, by its size: nano-, micro- or milliseconds, or seconds."""
    for least, unit in ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3)):
        if time >= least:
            return unit
    return 1.0
