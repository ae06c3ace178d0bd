"""The wire format of Gemini's `generateContent` and `streamGenerateContent`: bodies checked field by field.

What this server cannot do is refused by name; what has no effect here is named in `Asked.ignored`. Both spellings of
Google's JSON are accepted; `Asked.body` and the paths in errors have the camel case one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec

from kvledger.engine.request import Sampling
from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import convert
from kvledger.providers.dialect import Asked
from kvledger.providers.gemini.contents import read_chat, unsupported
from kvledger.providers.gemini.errors import error_body
from kvledger.providers.gemini.fields import decode_body
from kvledger.providers.gemini.reply import ARRAY, SSE, GeminiReply, json_body
from kvledger.text.chat import Chat


class GenerationConfig(msgspec.Struct, rename="camel"):
    """The generation settings that this server knows, acted on or not."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    candidate_count: int | None = None
    max_output_tokens: int | None = None
    stop_sequences: list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    response_logprobs: bool | None = None
    logprobs: int | None = None
    response_mime_type: str | None = None
    response_modalities: list[str] | None = None
    # Refused: they would change the answer.
    response_schema: dict[str, Any] | None = None
    response_json_schema: Any = None
    response_format: Any = None
    speech_config: dict[str, Any] | None = None
    image_config: dict[str, Any] | None = None


CONFIG_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(GenerationConfig))
FIELDS = frozenset(
    ("model", "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "cachedContent")
)
MAX_CANDIDATES = 8
MAX_STOP_SEQUENCES = 5
MAX_LOGPROBS = 20
INT32 = 2**31

Number = TypeVar("Number", int, float)


class GeminiGenerate:
    """The dialect. `framing` is that of streams: "sse" where the query has `alt=sse`, as every SDK sends it, else
    "array", one JSON array that arrives bit by bit."""

    provider = "gemini"
    api = "generate"

    def __init__(self, framing: Literal["sse", "array"] = "sse") -> None:
        self.framing = framing

    @property
    def media_type(self) -> str:
        """The content type of a stream."""
        return "text/event-stream" if self.framing == "sse" else "application/json"

    def parse(self, raw: bytes, *, model: str = "", stream: bool = False) -> Asked:
        """See `Dialect.parse`. `model` is the one of the route, with or without `models/`.

        A `cachedContent` is only a name here: `caches.with_cache` puts what it holds in front.
        """
        body = decode_body(raw)
        return self._asked(body, model, stream)

    def parse_count(self, raw: bytes, *, model: str = "") -> Asked:
        """Check a body of `countTokens`: `contents` alone, or a whole request in `generateContentRequest`."""
        body = decode_body(raw)
        inner = body.get("generateContentRequest")
        if inner is not None and body.get("contents"):
            raise InvalidRequestError(
                "`contents` and `generateContentRequest` exclude each other: send one.", param="contents"
            )
        if inner is not None and not isinstance(inner, dict):
            raise InvalidRequestError("`generateContentRequest` must be an object.", param="generateContentRequest")
        return self._asked(inner if inner is not None else body, model, stream=False)

    def count(self, tokens: int, *, cached: int = 0) -> bytes:
        """The answer of `countTokens`; `cached` of the tokens are those of a cached content."""
        told: dict[str, Any] = {"totalTokens": tokens}
        if cached:
            told["cachedContentTokenCount"] = cached
        return json_body({**told, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}]})

    def reply(self, asked: Asked, *, id: str, created: float) -> GeminiReply:
        """See `Dialect.reply`."""
        return GeminiReply(id, asked.model, ARRAY if self.framing == "array" else SSE)

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """The header `x-goog-api-key`, the query's `key`, or a Bearer token, in this order."""
        if found := headers.get("x-goog-api-key") or query.get("key"):
            return found
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """See `Dialect.error`."""
        return error_body(status, message, param=param, code=code)

    def error_event(self, status: int, message: str) -> bytes:
        """See `Dialect.error_event`."""
        body = error_body(status, message)
        return b"data: " + body + b"\n\n" if self.framing == "sse" else b",\n" + body + b"]"

    @staticmethod
    def _asked(body: dict[str, Any], model: str, stream: bool) -> Asked:
        model = (model or str(body.get("model") or "")).removeprefix("models/")
        _check_cached(body)
        if not body.get("contents"):
            raise InvalidRequestError("`contents` must hold at least one content.", param="contents")
        chat = read_chat(body)
        if no_tools(body):
            chat = Chat(chat.messages)
        fields = {} if body.get("generationConfig") is None else body["generationConfig"]
        config = convert(fields, GenerationConfig, "generationConfig")
        _refuse_unsupported(config)
        return Asked(
            model=model,
            chat=chat,
            body={**body, "model": model},
            sampling=_sampling(config),
            choices=_within("candidateCount", config.candidate_count, 1, MAX_CANDIDATES, 1),
            max_tokens=None
            if config.max_output_tokens is None
            else _within("maxOutputTokens", config.max_output_tokens, 1, INT32 - 1, 1),
            stop=_stop(config.stop_sequences or []),
            stream=stream,
            ignored=(
                *(name for name, value in body.items() if name not in FIELDS and value is not None),
                *(
                    f"generationConfig.{name}"
                    for name, value in fields.items()
                    if name not in CONFIG_FIELDS and value is not None
                ),
            ),
        )


def no_tools(body: Mapping[str, Any]) -> bool:
    """Whether `toolConfig` forbids calls; the sure way then is not to tell the model of any tool. Raises for a mode
    that this server cannot hold the model to."""
    path = "toolConfig.functionCallingConfig.mode"
    value: Any = body
    for name in path.split("."):
        if value is None:
            return False
        if not isinstance(value, Mapping):
            raise InvalidRequestError("`toolConfig` must be objects down to the mode.", param="toolConfig")
        value = value.get(name)
    mode = str(value or "AUTO").upper()
    if mode not in ("AUTO", "NONE", "MODE_UNSPECIFIED"):
        raise unsupported(
            path, f"A function calling mode other than AUTO and NONE (`{mode[:40]}`) is", "use one of them"
        )
    return mode == "NONE"


def _check_cached(body: Mapping[str, Any]) -> None:
    name = body.get("cachedContent")
    if name is None:
        return
    if not isinstance(name, str) or not name:
        raise InvalidRequestError("`cachedContent` must be a name: cachedContents/ID.", param="cachedContent")
    for field in ("systemInstruction", "tools", "toolConfig"):
        if body.get(field):
            raise InvalidRequestError(
                f"CachedContent can not be used with a request that sets `{field}`: put it into the cached content"
                " when that is created.",
                param=field,
            )


def _refuse_unsupported(config: GenerationConfig) -> None:
    """Refuse, by name, what would change the answer if it were honoured; silence would be a wrong answer."""
    for name in ("response_schema", "response_json_schema", "response_format", "speech_config", "image_config"):
        if getattr(config, name) is not None:
            camel = next(f.encode_name for f in msgspec.structs.fields(config) if f.name == name)
            raise unsupported(f"generationConfig.{camel}", f"`{camel}` is", "leave it out")
    if config.response_mime_type not in (None, "", "text/plain"):
        kind = config.response_mime_type
        raise unsupported("generationConfig.responseMimeType", f"`responseMimeType` {kind!r:.40} is", "use text/plain")
    if any(kind.upper() != "TEXT" for kind in config.response_modalities or ()):
        raise unsupported("generationConfig.responseModalities", "Modalities other than TEXT are", "ask for text")
    if config.logprobs is not None and not config.response_logprobs:
        raise InvalidRequestError("`logprobs` needs `responseLogprobs` to be true.", param="generationConfig.logprobs")


def _sampling(config: GenerationConfig) -> Sampling:
    return Sampling(
        temperature=_within("temperature", config.temperature, 0.0, 2.0, 1.0),
        top_k=int(_within("topK", config.top_k, 0.0, float(INT32 - 1), 0.0)),
        top_p=_within("topP", config.top_p, 0.0, 1.0, 1.0),
        presence_penalty=_within("presencePenalty", config.presence_penalty, -2.0, 2.0, 0.0),
        frequency_penalty=_within("frequencyPenalty", config.frequency_penalty, -2.0, 2.0, 0.0),
        seed=None if config.seed is None else _within("seed", config.seed, -INT32, INT32 - 1, 0),
        logprobs=_within("logprobs", config.logprobs, 0, MAX_LOGPROBS, 0) if config.response_logprobs else None,
    )


def _within(name: str, value: Number | None, low: Number, high: Number, default: Number) -> Number:
    if value is None:
        return default
    if low <= value <= high:
        return value
    raise InvalidRequestError(
        f"`{name}` must be between {low} and {high}, not {value}.", param=f"generationConfig.{name}"
    )


def _stop(strings: list[str]) -> tuple[str, ...]:
    param = "generationConfig.stopSequences"
    if len(strings) > MAX_STOP_SEQUENCES:
        raise InvalidRequestError(
            f"`stopSequences` may hold up to {MAX_STOP_SEQUENCES} strings, not {len(strings)}.", param=param
        )
    if "" in strings:
        raise InvalidRequestError(
            "`stopSequences` must not hold an empty string: it would end every answer.", param=param
        )
    return tuple(strings)
