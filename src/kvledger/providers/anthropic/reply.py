"""Answers of `POST /v1/messages`: the whole message, and the server-sent events of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvledger.engine.request import FinishReason
from kvledger.ledger.account import Account, Usage
from kvledger.providers.dialect import Answer, Asked, TokenScore, ToolCall

_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ENDED = frozenset((FinishReason.STOP, FinishReason.LENGTH, FinishReason.CAPACITY))


class AnthropicReply:
    """Writes one answer. A stream is message_start (with the cache split), the content blocks one after another,
    message_delta (the stop reason and the usage, cumulative) and message_stop.

    `diagnostics` is what `diagnostics.diagnose` says of a request that asked; set it before `start` or `whole`. Unset,
    such a request is answered with "pending", which is Anthropic's word for not known yet.
    """

    def __init__(self, id: str, asked: Asked) -> None:
        self.id = id
        self._asked = asked
        previous = (asked.body.get("diagnostics") or {}).get("previous_message_id")
        self.diagnostics: Mapping[str, Any] | None = {"cache_miss_reason": None} if previous else None
        self._blocks = 0
        self._text_open = False
        self._answer: Answer | None = None

    def start(self, usage: Usage) -> bytes:
        return _json_event("message_start", message=self._message([], None, None, usage)) + _json_event("ping")

    def text(self, choice: int, text: str, scores: Sequence[TokenScore]) -> bytes:
        if not text:
            return b""
        opened = b""
        if not self._text_open:
            self._text_open = True
            opened = self._block_event("content_block_start", content_block={"type": "text", "text": ""})
        return opened + self._block_event("content_block_delta", delta={"type": "text_delta", "text": text})

    def tool_call(self, choice: int, call: ToolCall) -> bytes:
        closed = self._close_text()
        block = _tool_use(call)
        arguments = msgspec.json.encode(block["input"]).decode()
        started = self._block_event("content_block_start", content_block={**block, "input": {}})
        delta = self._block_event("content_block_delta", delta={"type": "input_json_delta", "partial_json": arguments})
        return closed + started + delta + self._stop_block()

    def finish(self, choice: int, answer: Answer) -> bytes:
        self._answer = answer
        return self._close_text()

    def end(self, usage: Usage, account: Account | None) -> bytes:
        assert self._answer is not None  # `finish` comes before
        reason, sequence = self._stopped(self._answer, usage)
        delta = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None, "container": None}
        full = self._usage(usage)
        repeated = {
            name: full[name]
            for name in (
                "input_tokens",
                "cache_creation_input_tokens",
                "cache_read_input_tokens",
                "output_tokens",
                "output_tokens_details",
                "server_tool_use",
            )
        }
        return _json_event("message_delta", delta=delta, usage=repeated) + _json_event("message_stop")

    def whole(self, answers: Sequence[Answer], usage: Usage, account: Account | None) -> bytes:
        (answer,) = answers
        content = [{"type": "text", "text": answer.text}] if answer.text else []
        content += [_tool_use(call) for call in answer.tool_calls]
        return msgspec.json.encode(self._message(content, *self._stopped(answer, usage), usage))

    def _message(
        self, content: Sequence[Any], reason: str | None, sequence: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._asked.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "stop_details": None,
            "container": None,
            "diagnostics": self.diagnostics,
            "usage": self._usage(usage),
        }

    def _stopped(self, answer: Answer, usage: Usage) -> tuple[str, str | None]:
        """Anthropic's reason, and the stop sequence where one was it. What ended short of `max_tokens` without the
        model or a sequence saying so ran out of context."""
        assert answer.reason in _ENDED, answer.reason  # anything else is an error, not an answer
        if answer.reason is not FinishReason.STOP:
            limit = self._asked.max_tokens
            full = limit is not None and usage.output >= limit
            return "max_tokens" if full else "model_context_window_exceeded", None
        if answer.tool_calls:
            return "tool_use", None
        return ("end_turn", None) if answer.stop is None else ("stop_sequence", answer.stop)

    def _usage(self, usage: Usage) -> dict[str, Any]:
        """All fields, known zeros as zeros. What was written under a lifetime that Anthropic has no word for, by
        another provider's rules, stands among the 5 minute writes."""
        split = usage.split
        hour = split.written.get("1h", 0)
        body = self._asked.body
        return {
            "input_tokens": split.fresh,
            "cache_creation_input_tokens": split.written_tokens,
            "cache_read_input_tokens": split.read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": split.written_tokens - hour,
                "ephemeral_1h_input_tokens": hour,
            },
            "output_tokens": usage.output,
            "output_tokens_details": {"thinking_tokens": usage.reasoning},
            "server_tool_use": {"web_fetch_requests": 0, "web_search_requests": 0},
            "service_tier": usage.service_tier,
            "inference_geo": usage.region or body.get("inference_geo") or "not_available",
            "speed": body.get("speed") or usage.speed,
        }

    def _close_text(self) -> bytes:
        if not self._text_open:
            return b""
        self._text_open = False
        return self._stop_block()

    def _stop_block(self) -> bytes:
        stopped = self._block_event("content_block_stop")
        self._blocks += 1
        return stopped

    def _block_event(self, name: str, **fields: Any) -> bytes:
        return _json_event(name, index=self._blocks, **fields)


def event(name: str, data: bytes) -> bytes:
    """One server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def _json_event(name: str, **fields: Any) -> bytes:
    return event(name, msgspec.json.encode({"type": name, **fields}))


def _tool_use(call: ToolCall) -> dict[str, Any]:
    """A call as a block. Its input is an object in this format, so arguments that are none are put into one."""
    input: Any
    try:
        input = _OBJECT.decode(call.arguments or "{}")
    except msgspec.DecodeError:
        input = {"arguments": call.arguments}
    id = call.id if call.id.startswith("toolu_") else f"toolu_{call.id}"
    return {"type": "tool_use", "id": id, "name": call.name, "input": input}
