"""Answers of `POST /v1/chat/completions`: the whole completion, and the server-sent events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

FINISH_REASONS = {"stop": "stop", "length": "length", "capacity": "length"}
"""Our finish reasons -> OpenAI's. What has no entry is no finished answer but an error."""

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


def usage(prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> Usage:
    """OpenAI's usage block. `cached_tokens` is a part of `prompt_tokens`; the prompt of several choices counts once."""
    return Usage(
        prompt_tokens,
        completion_tokens,
        prompt_tokens + completion_tokens,
        PromptTokensDetails(cached_tokens),
        CompletionTokensDetails(),
    )


class AssistantMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


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


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


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
