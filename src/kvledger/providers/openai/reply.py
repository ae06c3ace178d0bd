"""Answers of `POST /v1/chat/completions`: the whole completion, and the server-sent events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

DONE = b"data: [DONE]\n\n"


class TopLogprob(msgspec.Struct):
    """A token's text, its natural-log probability and its exact bytes (a token may be less than a character)."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class Logprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int
    cache_write_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class CalledFunction(msgspec.Struct):
    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    function: CalledFunction
    type: str = "function"


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class Choice(msgspec.Struct):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: Logprobs | None = None


class Completion(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class CalledFunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    index: int
    id: str | None = None
    type: str | None = None
    function: CalledFunctionDelta | None = None


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | msgspec.UnsetType | None


_encoder = msgspec.json.Encoder()


@dataclass(frozen=True)
class Heading:
    """What every part of one answer repeats: its id, its time (seconds since the epoch) and the model's name."""

    id: str
    created: int
    model: str

    def completion(self, choices: Sequence[Choice], total: Usage) -> bytes:
        """The JSON body of an answer that is not streamed."""
        return _encoder.encode(
            Completion(id=self.id, created=self.created, model=self.model, choices=list(choices), usage=total)
        )


@dataclass(frozen=True)
class ChunkStream:
    """Writes the events of one stream. With `include_usage`, usage is null in every chunk and numbers in the last."""

    heading: Heading
    include_usage: bool

    def start(self, index: int) -> bytes:
        """The first event of choice `index`: who speaks."""
        return self._event([ChunkChoice(index, Delta(role="assistant", content=""))])

    def delta(self, index: int, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """More text of choice `index`."""
        return self._event([ChunkChoice(index, Delta(content=text), Logprobs(list(logprobs)) if logprobs else None)])

    def tool_call(self, index: int, number: int, call: ToolCall) -> bytes:
        """Call `number` (from 0) of choice `index`: its name first, then its arguments, as OpenAI sends them."""
        named = ToolCallDelta(number, call.id, call.type, CalledFunctionDelta(call.function.name, ""))
        filled = ToolCallDelta(number, function=CalledFunctionDelta(arguments=call.function.arguments))
        return b"".join(self._event([ChunkChoice(index, Delta(tool_calls=[each]))]) for each in (named, filled))

    def finish(self, index: int, reason: str) -> bytes:
        """The last event of choice `index`. `reason` is OpenAI's word."""
        return self._event([ChunkChoice(index, Delta(), finish_reason=reason)])

    def total(self, total: Usage) -> bytes:
        """The usage event, after the last choice has finished."""
        return self._event([], total)

    def _event(self, choices: list[ChunkChoice], total: Usage | None = None) -> bytes:
        shown = total if self.include_usage else msgspec.UNSET
        heading = self.heading
        return event(
            _encoder.encode(
                Chunk(id=heading.id, created=heading.created, model=heading.model, choices=choices, usage=shown)
            )
        )


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"
