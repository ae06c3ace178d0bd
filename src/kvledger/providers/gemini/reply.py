"""Answers of `generateContent` and `streamGenerateContent`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvledger.engine.request import FinishReason
from kvledger.ledger.account import Account, Usage
from kvledger.providers.dialect import Answer, TokenScore, ToolCall
from kvledger.providers.gemini.usage import usage_metadata

FINISH_REASONS = {FinishReason.STOP: "STOP", FinishReason.LENGTH: "MAX_TOKENS", FinishReason.CAPACITY: "MAX_TOKENS"}
"""Our finish reasons -> Google's. What has no entry is no finished answer but an error, and is OTHER if it is shown."""

_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True)
class Framing:
    """What stands around each chunk of a stream, and at its end."""

    before: bytes
    after: bytes
    end: bytes


SSE = Framing(b"data: ", b"\n\n", b"")
ARRAY = Framing(b",\n", b"", b"]")


def json_body(value: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(value)


@dataclass(slots=True)
class GeminiReply:
    """Writes one answer. Every chunk of a stream repeats the usage so far, as Google's do; that of the last is final,
    and the finish reasons of all candidates stand in it. As an array, a stream opens with a chunk without candidates.
    """

    id: str
    model: str
    framing: Framing = SSE
    _usage: dict[str, Any] = field(default_factory=dict)
    _finished: list[dict[str, Any]] = field(default_factory=list)

    def start(self, usage: Usage) -> bytes:
        """Keeps the prompt's counts for the chunks to come."""
        whole = usage_metadata(usage)
        self._usage = {name: count for name, count in whole.items() if name != "candidatesTokenCount"}
        return b"[" + json_body(self._response([])) if self.framing is ARRAY else b""

    def text(self, choice: int, text: str, scores: Sequence[TokenScore]) -> bytes:
        if not text and not scores:
            return b""
        return self._chunk([self._candidate(choice, [{"text": text}], scores)])

    def tool_call(self, choice: int, call: ToolCall) -> bytes:
        part = _call(call)
        return self._chunk([self._candidate(choice, [part])]) if part else b""

    def finish(self, choice: int, answer: Answer) -> bytes:
        self._finished.append({**self._candidate(choice, [{"text": ""}]), **_ending(answer)})
        return b""

    def end(self, usage: Usage, account: Account | None) -> bytes:
        self._usage = usage_metadata(usage)
        return self._chunk(self._finished) + self.framing.end

    def whole(self, answers: Sequence[Answer], usage: Usage, account: Account | None) -> bytes:
        self._usage = usage_metadata(usage)
        candidates = []
        for choice, answer in enumerate(answers):
            calls = [part for call in answer.tool_calls if (part := _call(call))]
            parts = [{"text": answer.text}] if answer.text or not calls else []
            candidate = self._candidate(choice, [*parts, *calls], answer.scores)
            if answer.scores:
                candidate["avgLogprobs"] = sum(score.logprob for score in answer.scores) / len(answer.scores)
            candidates.append({**candidate, **_ending(answer)})
        return json_body(self._response(candidates))

    def _candidate(self, choice: int, parts: list[dict[str, Any]], scores: Sequence[TokenScore] = ()) -> dict[str, Any]:
        candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": choice}
        if scores:
            candidate["logprobsResult"] = {
                "topCandidates": [{"candidates": [_score(other) for other in s.alternatives]} for s in scores],
                "chosenCandidates": [_score(score) for score in scores],
            }
        return candidate

    def _response(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        told: dict[str, Any] = {"candidates": candidates} if candidates else {}
        return {**told, "usageMetadata": self._usage, "modelVersion": self.model, "responseId": self.id}

    def _chunk(self, candidates: list[dict[str, Any]]) -> bytes:
        return self.framing.before + json_body(self._response(candidates)) + self.framing.after


def _score(score: TokenScore) -> dict[str, Any]:
    return {"token": score.text, "logProbability": score.logprob}


def _call(call: ToolCall) -> dict[str, Any] | None:
    """The part of a call; None where the model wrote arguments that are no JSON object."""
    try:
        arguments = _ARGUMENTS.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return None
    return {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}


def _ending(answer: Answer) -> dict[str, Any]:
    broken = next((call for call in answer.tool_calls if _call(call) is None), None)
    if broken is not None:
        message = f"The arguments of the call of {broken.name} are no JSON object."
        return {"finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": message}
    return {"finishReason": FINISH_REASONS.get(answer.reason, "OTHER")}
