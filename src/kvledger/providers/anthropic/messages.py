"""The wire format of `POST /v1/messages` and `/v1/messages/count_tokens`: bodies checked field by field.

What this server cannot do is refused by name; what has no effect on the answer is named in `Asked.ignored`, though the
rulebook may well act on it: thinking, effort and speed decide what a cache can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kvledger.engine.request import Sampling
from kvledger.errors import InvalidRequestError
from kvledger.providers.anthropic.blocks import Message, read_messages, read_system, read_tools, unsupported
from kvledger.providers.anthropic.errors import error_body
from kvledger.providers.anthropic.marks import place_marks, read_mark
from kvledger.providers.anthropic.parts import read_parts
from kvledger.providers.anthropic.prewarm import check_prewarm
from kvledger.providers.anthropic.reply import AnthropicReply, event
from kvledger.providers.decode import decode
from kvledger.providers.dialect import Asked
from kvledger.text.chat import Chat


class ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


class Diagnostics(msgspec.Struct):
    previous_message_id: str | None = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class Body(msgspec.Struct):
    """Every field this server knows, acted on or not. `null` means the default."""

    model: str
    messages: list[Message]
    max_tokens: int | None = None  # required, but not for counting
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    # For the rulebook and the books.
    cache_control: dict[str, Any] | None = None
    diagnostics: Diagnostics | None = None
    inference_geo: str | None = None
    speed: str | None = None
    # Refused: they would change the answer.
    mcp_servers: list[dict[str, Any]] | None = None
    # Without effect on the answer here; typed, so that a wrong value does not pass here and fail elsewhere.
    container: str | dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None
    service_tier: str | None = None
    thinking: Thinking | None = None


WITHOUT_EFFECT = frozenset(
    ("container", "context_management", "metadata", "output_config", "service_tier", "speed", "thinking")
)
THINKING_TYPES = ("adaptive", "between_tools", "disabled", "enabled")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
MIN_BUDGET = 1024  # tokens of thinking
MAX_STOP_SEQUENCES = 256
"""Anthropic publishes no limit; every step of the output looks for each of them."""

_KNOWN = frozenset(Body.__struct_fields__)
_BODY = msgspec.json.Decoder(Body)
_FIELDS = msgspec.json.Decoder(dict[str, Any])
_INT64 = 2**63

Number = TypeVar("Number", int, float)


class AnthropicMessages:
    """The dialect."""

    provider = "anthropic"
    api = "messages"

    def parse(self, raw: bytes, *, model: str = "", stream: bool = False) -> Asked:
        """See `Dialect.parse`. `max_tokens` 0 is kept as such: it warms the cache and asks for no answer."""
        body = decode(_BODY, raw)
        if body.max_tokens is None:
            raise InvalidRequestError("`max_tokens` is required and missing.", param="max_tokens")
        return _asked(body, raw, model, stream)

    def parse_count(self, raw: bytes, *, model: str = "") -> Asked:
        """Check a body of `count_tokens`, which has the fields of the prompt alone."""
        return _asked(decode(_BODY, raw), raw, model, stream=False)

    def count(self, tokens: int) -> bytes:
        """The answer of `count_tokens`."""
        return msgspec.json.encode({"input_tokens": tokens})

    def reply(self, asked: Asked, *, id: str, created: float) -> AnthropicReply:
        """See `Dialect.reply`."""
        return AnthropicReply(f"msg_{id}", asked)

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """The header `x-api-key`, or else a Bearer token."""
        if found := headers.get("x-api-key"):
            return found
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    def error(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        request_id: str | None = None,
    ) -> bytes:
        """See `Dialect.error`. This shape has no place for `param` and `code`, and one for the request's id."""
        return error_body(status, message, request_id=request_id)

    def error_event(self, status: int, message: str) -> bytes:
        """See `Dialect.error_event`."""
        return event("error", error_body(status, message))


def _asked(body: Body, raw: bytes, model: str, stream: bool) -> Asked:
    fields = _FIELDS.decode(raw)
    _refuse_unsupported(body)
    _check_thinking(body)
    check_prewarm(fields)
    tools = tuple(read_tools(body.tools or []))
    messages = (*read_system(body.system), *read_messages(body.messages))
    if b'"cache_control"' in raw:
        place_marks(read_parts(fields, _uncounted), read_mark(fields.get("cache_control"), "cache_control"))
    if not body.model:
        raise InvalidRequestError("`model` must be the name of a model.", param="model")
    choice = body.tool_choice
    hidden = choice is not None and choice.type == "none"  # the sure way is not to tell the model of any tool
    ignored = [
        name for name, value in fields.items() if (name not in _KNOWN or name in WITHOUT_EFFECT) and value is not None
    ]
    if choice is not None and choice.disable_parallel_tool_use:
        ignored.append("tool_choice.disable_parallel_tool_use")
    return Asked(
        model=model or body.model,
        chat=Chat(messages, () if hidden else tools),
        body=fields,
        sampling=Sampling(
            temperature=_within("temperature", body.temperature, 0.0, 1.0, 1.0),
            top_k=_within("top_k", body.top_k, 0, _INT64 - 1, 0),
            top_p=_within("top_p", body.top_p, 0.0, 1.0, 1.0),
        ),
        max_tokens=None if body.max_tokens is None else _within("max_tokens", body.max_tokens, 0, _INT64 - 1, 0),
        stop=_stop(body.stop_sequences or []),
        stream=stream or bool(body.stream),
        ignored=tuple(ignored),
    )


def _uncounted(text: str) -> int:
    return 0


def _refuse_unsupported(body: Body) -> None:
    """Refuse, by name, what would change the answer if it were honoured; silence would be a wrong answer."""
    if body.mcp_servers:
        raise unsupported("mcp_servers", "`mcp_servers` are", "call their tools yourself, as custom tools")
    if body.output_config is not None and body.output_config.format is not None:
        raise unsupported("output_config.format", "`output_config.format` is", "leave it out")
    choice = body.tool_choice.type if body.tool_choice else "auto"
    if choice in ("any", "tool"):
        raise unsupported("tool_choice", f"A `tool_choice` of type {choice} is", "use auto or none")
    if choice not in ("auto", "none"):
        raise InvalidRequestError(
            f"`tool_choice.type` must be auto, any, tool or none, not {choice[:40]!r}.", param="tool_choice.type"
        )


def _check_thinking(body: Body) -> None:
    """Thinking may happen and need not, so a model that does not think can answer; but a wrong value stays wrong."""
    effort = body.output_config.effort if body.output_config else None
    if effort is not None and effort not in EFFORTS:
        raise InvalidRequestError(
            f"`output_config.effort` must be one of {', '.join(EFFORTS)}, not {effort[:40]!r}.",
            param="output_config.effort",
        )
    if body.speed not in (None, "standard", "fast"):
        raise InvalidRequestError(f"`speed` must be standard or fast, not {body.speed!r:.40}.", param="speed")
    if body.service_tier not in (None, "auto", "standard_only"):
        raise InvalidRequestError(
            f"`service_tier` must be auto or standard_only, not {body.service_tier!r:.40}.", param="service_tier"
        )
    thinking = body.thinking
    if thinking is None:
        return
    if thinking.type not in THINKING_TYPES:
        raise InvalidRequestError(
            f"`thinking.type` must be one of {', '.join(THINKING_TYPES)}, not {thinking.type[:40]!r}.",
            param="thinking.type",
        )
    if thinking.type != "enabled":
        return
    budget = thinking.budget_tokens
    if budget is None or budget < MIN_BUDGET or (body.max_tokens and budget >= body.max_tokens):
        raise InvalidRequestError(
            f"`thinking.budget_tokens` must be {MIN_BUDGET} or more and less than `max_tokens`, not {budget}.",
            param="thinking.budget_tokens",
        )


def _within(name: str, value: Number | None, low: Number, high: Number, default: Number) -> Number:
    if value is None:
        return default
    if low <= value <= high:
        return value
    if high == _INT64 - 1:
        raise InvalidRequestError(f"`{name}` must be at least {low} and fit 64 bits, not {value}.", param=name)
    raise InvalidRequestError(f"`{name}` must be between {low:g} and {high:g}, not {value}.", param=name)


def _stop(strings: list[str]) -> tuple[str, ...]:
    if len(strings) > MAX_STOP_SEQUENCES:
        raise InvalidRequestError(
            f"`stop_sequences` may hold up to {MAX_STOP_SEQUENCES} strings, not {len(strings)}.", param="stop_sequences"
        )
    for index, string in enumerate(strings):
        if not string.strip():
            raise InvalidRequestError(
                f"`stop_sequences[{index}]` must hold more than white space.", param=f"stop_sequences[{index}]"
            )
    return tuple(strings)
