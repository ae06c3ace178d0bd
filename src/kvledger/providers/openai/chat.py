"""The body of `POST /v1/chat/completions`: checked field by field and turned into a neutral chat.

`docs/http.md` lists what is acted on, ignored and refused; the tests hold the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvledger.engine.request import Sampling
from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import convert, decode
from kvledger.providers.dialect import Asked
from kvledger.providers.openai.checks import INT64, unsupported, within
from kvledger.providers.openai.messages import Message, to_neutral
from kvledger.providers.openai.tools import shown_tools
from kvledger.text.chat import Chat


class FunctionDefinition(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: str
    function: FunctionDefinition | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: str


class Body(msgspec.Struct):
    """Every field this server knows, acted on or not. `null` means the default, as it does at OpenAI."""

    model: str
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    # Extensions under the names vLLM users know.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    # Refused unless they ask for what happens anyway.
    audio: dict[str, Any] | None = None
    function_call: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    modalities: list[str] | None = None
    moderation: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    # Without effect here; typed, so that a wrong value does not pass here and fail elsewhere.
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None
    verbosity: str | None = None


WITHOUT_EFFECT = frozenset(
    (
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    )
)

FOR_THE_ACCOUNT = frozenset(("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"))
"""Fields without effect on the answer, and so far from ignored that the account goes by them."""

_KNOWN = frozenset(Body.__struct_fields__)
_BODY = msgspec.json.Decoder(Body)
_FIELDS = msgspec.json.Decoder(dict[str, Any])

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4
MAX_TOP_LOGPROBS = 20


def parse(raw: bytes) -> Asked:
    """Check a request body; raises `InvalidRequestError` with the path of the first field that cannot be served."""
    body = decode(_BODY, raw)
    _refuse_unsupported(body)
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise InvalidRequestError(
            "`max_tokens` and `max_completion_tokens` mean the same here: set only one.", param="max_tokens"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequestError("`stream_options` needs `stream` to be true.", param="stream_options")
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    limit = "max_tokens" if body.max_tokens is not None else "max_completion_tokens"
    sent = decode(_FIELDS, raw)
    return Asked(
        model=body.model,
        chat=Chat(to_neutral(body.messages), _tools(body)),
        body=sent,
        sampling=_sampling(body),
        choices=within("n", body.n, 1, MAX_CHOICES, 1),
        max_tokens=None if getattr(body, limit) is None else within(limit, getattr(body, limit), 1, INT64 - 1, 1),
        stop=_stop(body.stop),
        stream=bool(body.stream),
        ignore_eos=bool(body.ignore_eos),
        ignored=tuple(
            name
            for name, value in sent.items()
            if value is not None and (name not in _KNOWN or name in WITHOUT_EFFECT - FOR_THE_ACCOUNT)
        ),
    )


def _sampling(body: Body) -> Sampling:
    return Sampling(
        temperature=within("temperature", body.temperature, 0, 2, 1.0),
        top_k=max(within("top_k", body.top_k, -1, INT64 - 1, 0), 0),
        top_p=within("top_p", body.top_p, 0, 1, 1.0),
        min_p=within("min_p", body.min_p, 0, 1, 0.0),
        repetition_penalty=within("repetition_penalty", body.repetition_penalty, 0.1, 10, 1.0),
        presence_penalty=within("presence_penalty", body.presence_penalty, -2, 2, 0.0),
        frequency_penalty=within("frequency_penalty", body.frequency_penalty, -2, 2, 0.0),
        logit_bias=_logit_bias(body.logit_bias or {}),
        logprobs=within("top_logprobs", body.top_logprobs, 0, MAX_TOP_LOGPROBS, 0) if body.logprobs else None,
        seed=None if body.seed is None else within("seed", body.seed, -INT64, INT64 - 1, 0),
    )


def _refuse_unsupported(body: Body) -> None:
    """Refuse, by name, what would change the answer if it were honoured; silence would be a wrong answer."""
    for name in ("audio", "functions", "moderation", "web_search_options"):
        if getattr(body, name) is not None:
            raise unsupported(name, f"`{name}` is", "leave it out" if name != "functions" else "use `tools`")
    if body.function_call not in (None, "none", "auto"):
        raise unsupported("function_call", "A forced `function_call` is", "use `tools` with `tool_choice` `auto`")
    if body.modalities is not None and body.modalities != ["text"]:
        raise unsupported("modalities", f'Modalities other than ["text"] (here {body.modalities}) are', "ask for text")
    if body.response_format is not None and body.response_format.type != "text":
        kind = body.response_format.type
        raise unsupported("response_format", f"`response_format` of type `{kind}` is", "use type `text`")


def _tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    """The tool definitions as the client wrote them, key order included: the template renders them as JSON."""
    for index, definition in enumerate(body.tools or ()):
        path = f"tools[{index}]"
        tool = convert(definition, Tool, path)
        if tool.type != "function":
            raise unsupported(f"{path}.type", f"A tool of type `{tool.type}` (`{path}`) is", "use type `function`")
        if tool.function is None:
            raise InvalidRequestError(f"`{path}.function` is required and missing.", param=f"{path}.function")
    return shown_tools(body.tools or (), body.tool_choice)


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidRequestError(
            f"`stop` may hold up to {MAX_STOP_STRINGS} strings, not {len(strings)}.", param="stop"
        )
    if "" in strings:
        raise InvalidRequestError("`stop` must not hold an empty string: it would end every answer.", param="stop")
    return strings


def _logit_bias(biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    for token, bias in biases.items():
        if not (token.isascii() and token.isdecimal() and len(token) <= 10):
            raise InvalidRequestError(
                f"`logit_bias` has a key that is not a token id: {token[:40]!r}.", param="logit_bias"
            )
        within("logit_bias", bias, -100, 100, 0.0)
    return tuple((int(token), bias) for token, bias in biases.items())
