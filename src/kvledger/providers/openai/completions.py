"""Chat Completions as a `Dialect`: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvledger.engine.request import FinishReason
from kvledger.ledger.account import Account, Usage
from kvledger.providers.dialect import Answer, Asked, TokenScore, ToolCall
from kvledger.providers.openai import chat, reply
from kvledger.providers.openai.wire import OpenAIWire

_FINISH_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.CAPACITY: "length"}


class OpenAIChat(OpenAIWire):
    """The dialect."""

    api = "chat"

    def parse(self, raw: bytes, *, model: str = "", stream: bool = False) -> Asked:
        """See `Dialect.parse`; `model` and `stream` stand in the body here."""
        return chat.parse(raw)

    def reply(self, asked: Asked, *, id: str, created: float) -> ChatReply:
        """See `Dialect.reply`."""
        return ChatReply(asked, reply.Heading(f"chatcmpl-{id}", int(created), asked.model))

    def error_event(self, status: int, message: str) -> bytes:
        """See `Dialect.error_event`. A stream that ends so has no `[DONE]`."""
        return reply.event(self.error(status, message))


class ChatReply:
    """Writes one answer. The finish reason of an answer with tool calls is `tool_calls`."""

    def __init__(self, asked: Asked, heading: reply.Heading) -> None:
        options: dict[str, Any] = asked.body.get("stream_options") or {}
        self.id = heading.id
        self._heading, self._asked = heading, asked
        self._include_usage = bool(options.get("include_usage"))
        self._chunks = reply.ChunkStream(heading, self._include_usage)
        self._calls = [0] * asked.choices

    def start(self, usage: Usage) -> bytes:
        return b"".join(map(self._chunks.start, range(self._asked.choices)))

    def text(self, choice: int, text: str, scores: Sequence[TokenScore]) -> bytes:
        return self._chunks.delta(choice, text, [_logprob(score) for score in scores])

    def tool_call(self, choice: int, call: ToolCall) -> bytes:
        number = self._calls[choice]
        self._calls[choice] += 1
        return self._chunks.tool_call(choice, number, _call(call))

    def finish(self, choice: int, answer: Answer) -> bytes:
        return self._chunks.finish(choice, _finish_reason(answer))

    def end(self, usage: Usage, account: Account | None) -> bytes:
        return (self._chunks.total(chat_usage(usage)) if self._include_usage else b"") + reply.DONE

    def whole(self, answers: Sequence[Answer], usage: Usage, account: Account | None) -> bytes:
        with_scores = self._asked.sampling.logprobs is not None
        return self._heading.completion(
            [
                reply.Choice(
                    index,
                    reply.AssistantMessage(
                        content=answer.text if answer.text or not answer.tool_calls else None,
                        tool_calls=[_call(call) for call in answer.tool_calls] or msgspec.UNSET,
                    ),
                    _finish_reason(answer),
                    reply.Logprobs([_logprob(score) for score in answer.scores]) if with_scores else None,
                )
                for index, answer in enumerate(answers)
            ],
            chat_usage(usage),
        )


def chat_usage(usage: Usage) -> reply.Usage:
    """A usage as Chat Completions reports it: totals include reads and writes; lifetimes are not told apart."""
    prompt, split = usage.split.prompt_tokens, usage.split
    return reply.Usage(
        prompt,
        usage.output,
        prompt + usage.output,
        reply.PromptTokensDetails(split.read, split.written_tokens),
        reply.CompletionTokensDetails(usage.reasoning),
    )


def _finish_reason(answer: Answer) -> str:
    if answer.tool_calls and answer.reason is FinishReason.STOP:
        return "tool_calls"
    return _FINISH_REASONS[answer.reason]


def _call(call: ToolCall) -> reply.ToolCall:
    return reply.ToolCall(call.id, reply.CalledFunction(call.name, call.arguments))


def _logprob(score: TokenScore) -> reply.TokenLogprob:
    others = [reply.TopLogprob(each.text, each.logprob, list(each.bytes)) for each in score.alternatives]
    return reply.TokenLogprob(score.text, score.logprob, list(score.bytes), others)
