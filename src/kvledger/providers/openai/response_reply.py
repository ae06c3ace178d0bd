"""Answers of `POST /v1/responses`: the whole response, and the typed events of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvledger.engine.request import FinishReason
from kvledger.ledger.account import Account, Usage
from kvledger.providers.dialect import Answer, Asked, TokenScore, ToolCall
from kvledger.providers.openai.conversations import Conversation, StoredResponse
from kvledger.providers.openai.diagnostics import diagnostics

_TIERS = {"fast": "priority", "auto": "default", None: "default"}
"""Service tiers that a response names otherwise than its request."""

_CUT_SHORT = (FinishReason.LENGTH, FinishReason.CAPACITY)


class ResponseReply:
    """Writes one response: an array of output items, a message for each stretch of text, an item for each call.

    A stream opens with `response.created` and `response.in_progress`; each item is added, filled and done before the
    next; the last event is `response.completed`, `response.incomplete` or, from `fail`, `response.failed`.
    """

    def __init__(
        self, asked: Asked, id: str, created: float, conversation: Conversation, comparison_is_found: bool
    ) -> None:
        self.id = f"resp_{id}"
        self._asked, self._digits, self._conversation = asked, id, conversation
        self._comparison_is_found = comparison_is_found
        self._echo = _echo(asked, self.id, created)
        self._with_scores = asked.sampling.logprobs is not None
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._open_id = ""  # of the message that grows, which is the next item of the output
        self._pieces: list[str] = []  # its text
        self._scores: list[TokenScore] = []
        self._is_cut_short = False

    def start(self, usage: Usage) -> bytes:
        response = self._response("in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def text(self, choice: int, text: str, scores: Sequence[TokenScore]) -> bytes:
        written = b"" if self._open_id else self._open_message()
        self._pieces.append(text)
        self._scores += scores
        shown = [_delta_score(score) for score in scores]
        return written + self._event("response.output_text.delta", **self._place(), delta=text, logprobs=shown)

    def tool_call(self, choice: int, call: ToolCall) -> bytes:
        written = self._close_message("completed")
        index, item = len(self._output), self._call(call)
        self._output.append(item)
        place = {"output_index": index, "item_id": item["id"]}
        opened = {**item, "arguments": "", "status": "in_progress"}
        return b"".join(
            (
                written,
                self._event("response.output_item.added", output_index=index, item=opened),
                self._event("response.function_call_arguments.delta", **place, delta=call.arguments),
                self._event("response.function_call_arguments.done", **place, name=call.name, arguments=call.arguments),
                self._event("response.output_item.done", output_index=index, item=item),
            )
        )

    def finish(self, choice: int, answer: Answer) -> bytes:
        self._is_cut_short = answer.reason in _CUT_SHORT
        # A response without any output has an empty message; a prewarm has no output at all.
        is_empty = not self._output and not self._open_id and self._asked.max_tokens != 0
        written = self._open_message() if is_empty else b""
        return written + self._close_message("incomplete" if self._is_cut_short else "completed")

    def end(self, usage: Usage, account: Account | None) -> bytes:
        status = "incomplete" if self._is_cut_short else "completed"
        self._store()
        return self._event(f"response.{status}", response=self._response(status, usage, account))

    def fail(self, message: str, *, code: str = "server_error") -> bytes:
        """The events that end a stream which breaks in the middle. Nothing is stored."""
        failed = {**self._response("failed"), "error": {"code": code, "message": message}}
        return self._event("response.failed", response=failed)

    def whole(self, answers: Sequence[Answer], usage: Usage, account: Account | None) -> bytes:
        answer = answers[0] if answers else Answer("", FinishReason.STOP)  # a prewarm may have none
        self._is_cut_short = answer.reason in _CUT_SHORT
        status = "incomplete" if self._is_cut_short else "completed"
        if answer.text or not (answer.tool_calls or self._asked.max_tokens == 0):
            self._output.append(self._message(self._new_id("msg"), answer.text, answer.scores, status))
        for call in answer.tool_calls:
            self._output.append(self._call(call))
        self._store()
        return msgspec.json.encode(self._response(status, usage, account))

    def _open_message(self) -> bytes:
        self._open_id, self._pieces, self._scores = self._new_id("msg"), [], []
        opened = {**self._message(self._open_id, "", (), "in_progress"), "content": []}
        return self._event("response.output_item.added", output_index=len(self._output), item=opened) + self._event(
            "response.content_part.added", **self._place(), part=self._part("", ())
        )

    def _close_message(self, status: str) -> bytes:
        if not self._open_id:
            return b""
        text, place = "".join(self._pieces), self._place()
        item = self._message(self._open_id, text, self._scores, status)
        scores = [_delta_score(score) for score in self._scores]
        self._output.append(item)
        self._open_id = ""
        return b"".join(
            (
                self._event("response.output_text.done", **place, text=text, logprobs=scores),
                self._event("response.content_part.done", **place, part=item["content"][0]),
                self._event("response.output_item.done", output_index=place["output_index"], item=item),
            )
        )

    def _message(self, id: str, text: str, scores: Sequence[TokenScore], status: str) -> dict[str, Any]:
        content = [self._part(text, scores)]
        return {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}

    def _part(self, text: str, scores: Sequence[TokenScore]) -> dict[str, Any]:
        shown = [_part_score(score) for score in scores] if self._with_scores else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": shown}

    def _call(self, call: ToolCall) -> dict[str, Any]:
        return {
            "id": self._new_id("fc"),
            "type": "function_call",
            "status": "completed",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
        }

    def _new_id(self, prefix: str) -> str:
        """The id of the item that is about to be added to the output."""
        return f"{prefix}_{self._digits}{len(self._output):02x}"

    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self._output), "content_index": 0, "item_id": self._open_id}

    def _response(self, status: str, usage: Usage | None = None, account: Account | None = None) -> dict[str, Any]:
        response = {
            **self._echo,
            "status": status,
            "output": list(self._output),
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "usage": None if usage is None else response_usage(usage),
        }
        if usage is not None and (self._asked.body.get("prompt_cache_options") or {}).get("comparison_response_id"):
            response["prompt_cache_diagnostics"] = diagnostics(account, is_found=self._comparison_is_found)
        return response

    def _store(self) -> None:
        if self._asked.body.get("store") is not False:
            self._conversation.put(self.id, StoredResponse(self._asked.body, tuple(self._output)))

    def _event(self, type: str, **fields: Any) -> bytes:
        event = {"type": type, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: " + type.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"


def response_usage(usage: Usage) -> dict[str, Any]:
    """A usage as the Responses API reports it: totals include what was read and written, writes by lifetime."""
    split = usage.split
    return {
        "input_tokens": split.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": split.read,
            "cache_write_tokens": split.written_tokens,
            "cache_write_tokens_details": {f"ttl_{ttl}_tokens": split.written.get(ttl, 0) for ttl in ("30m", "12h")},
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": split.prompt_tokens + usage.output,
    }


def error_event(message: str, code: str, sequence: int) -> bytes:
    """An `error` event, for a stream of which nothing else is known."""
    error = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": sequence}
    return b"event: error\ndata: " + msgspec.json.encode(error) + b"\n\n"


def _echo(asked: Asked, id: str, created: float) -> dict[str, Any]:
    """What a response repeats of its request, defaults filled in."""
    body, sampling = asked.body, asked.sampling
    options = body.get("prompt_cache_options")
    text, reasoning = body.get("text") or {}, body.get("reasoning") or {}
    tier = body.get("service_tier")
    return {
        "id": id,
        "object": "response",
        "created_at": int(created),
        "model": asked.model,
        "error": None,
        "background": False,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "prompt_cache_key": body.get("prompt_cache_key"),
        "prompt_cache_options": options and _options(options),
        "prompt_cache_retention": body.get("prompt_cache_retention"),
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "safety_identifier": body.get("safety_identifier"),
        "service_tier": _TIERS.get(tier, tier),
        "store": body.get("store") is not False,
        "temperature": sampling.temperature,
        "text": {"format": text.get("format") or {"type": "text"}, "verbosity": text.get("verbosity") or "medium"},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_logprobs": sampling.logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": body.get("truncation") or "disabled",
        "user": body.get("user"),
    }


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    applied = {"mode": options.get("mode") or "implicit", "ttl": options.get("ttl") or "30m"}
    if options.get("comparison_response_id"):
        applied["comparison_response_id"] = options["comparison_response_id"]
    return applied


def _delta_score(score: TokenScore) -> dict[str, Any]:
    others = [{"token": each.text, "logprob": each.logprob} for each in score.alternatives]
    return {"token": score.text, "logprob": score.logprob, "top_logprobs": others}


def _part_score(score: TokenScore) -> dict[str, Any]:
    others = [{"token": each.text, "bytes": list(each.bytes), "logprob": each.logprob} for each in score.alternatives]
    return {"token": score.text, "bytes": list(score.bytes), "logprob": score.logprob, "top_logprobs": others}
