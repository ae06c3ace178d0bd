"""The Responses API as a `Dialect`: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvledger.engine.request import Sampling
from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import check_depth, convert, decode
from kvledger.providers.dialect import Asked
from kvledger.providers.openai.checks import INT64, unsupported, within
from kvledger.providers.openai.conversations import Conversation
from kvledger.providers.openai.items import to_neutral
from kvledger.providers.openai.response_reply import ResponseReply, error_event
from kvledger.providers.openai.tools import shown_tools
from kvledger.providers.openai.wire import OpenAIWire, error_type
from kvledger.text.chat import Chat


class Format(msgspec.Struct):
    type: str


class TextConfig(msgspec.Struct):
    format: Format | None = None
    verbosity: str | None = None


class FunctionTool(msgspec.Struct):
    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class CacheOptions(msgspec.Struct):
    mode: str | None = None
    ttl: str | None = None
    prewarm: bool | None = None
    comparison_response_id: str | None = None


class Body(msgspec.Struct):
    """Every field this server knows, acted on or not. `null` means the default."""

    model: str
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: TextConfig | None = None
    # For the rulebook; of the options `prewarm` and `comparison_response_id` act here too.
    prompt_cache_key: str | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: str | None = None
    # Refused unless they ask for what happens anyway.
    background: bool | None = None
    context_management: list[Any] | None = None
    conversation: str | dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    # Without effect here; typed, so that a wrong value does not pass here and fail elsewhere.
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    stream_options: dict[str, Any] | None = None
    truncation: str | None = None
    user: str | None = None


WITHOUT_EFFECT = frozenset(
    (
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "reasoning",
        "safety_identifier",
        "service_tier",
        "stream_options",
        "truncation",
        "user",
    )
)

_KNOWN = frozenset(Body.__struct_fields__)
_BODY = msgspec.json.Decoder(Body)
_FIELDS = msgspec.json.Decoder(dict[str, Any])
_LOGPROBS = "message.output_text.logprobs"
_MOST_LOGPROBS = 20


class OpenAIResponses(OpenAIWire):
    """The dialect, for one tenant: `conversation` are the stored responses that it may go on from."""

    api = "responses"

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def parse(self, raw: bytes, *, model: str = "", stream: bool = False) -> Asked:
        """See `Dialect.parse`; `model` and `stream` stand in the body here.

        In `Asked.body`, `input` is always an array and begins with the items of the previous response, if one is named.
        """
        body = decode(_BODY, raw)
        _refuse_unsupported(body)
        sent = decode(_FIELDS, raw)
        before = self._before(body)
        items = [*before, *_new_items(body)]
        options = body.prompt_cache_options or CacheOptions()
        wants_logprobs = body.top_logprobs is not None or _LOGPROBS in (body.include or ())
        limit = body.max_output_tokens
        limit = None if limit is None else within("max_output_tokens", limit, 1, INT64 - 1, 1)
        return Asked(
            model=body.model,
            chat=Chat(to_neutral(body.instructions, items, len(before)), _tools(body)),
            body={**sent, "input": items},
            sampling=Sampling(
                temperature=within("temperature", body.temperature, 0, 2, 1.0),
                top_p=within("top_p", body.top_p, 0, 1, 1.0),
                logprobs=within("top_logprobs", body.top_logprobs, 0, _MOST_LOGPROBS, 0) if wants_logprobs else None,
            ),
            max_tokens=0 if options.prewarm else limit,
            stream=bool(body.stream),
            ignored=tuple(
                name
                for name, value in sent.items()
                if (name not in _KNOWN or name in WITHOUT_EFFECT) and value is not None
            ),
        )

    def comparison(self, asked: Asked) -> Mapping[str, Any] | None:
        """The body of the response that `comparison_response_id` names, None if there is none: read by the rulebook, it
        is the earlier prompt to judge by, and the diagnostics then say what has changed since."""
        id = (asked.body.get("prompt_cache_options") or {}).get("comparison_response_id")
        stored = self._conversation.get(id) if id else None
        return stored.body if stored else None

    def reply(self, asked: Asked, *, id: str, created: float) -> ResponseReply:
        """See `Dialect.reply`. A response with `store` (the default) can be gone on from once its reply has ended."""
        return ResponseReply(asked, id, created, self._conversation, self.comparison(asked) is not None)

    def error_event(self, status: int, message: str) -> bytes:
        """See `Dialect.error_event`. Where the reply is at hand, `ResponseReply.fail` says it better."""
        return error_event(message, error_type(status), 0)

    def _before(self, body: Body) -> list[Any]:
        if body.previous_response_id is None:
            return []
        stored = self._conversation.get(body.previous_response_id)
        if stored is None:
            raise InvalidRequestError(
                f"Previous response with id '{body.previous_response_id[:80]}' not found: it was not stored, was"
                " forgotten, or belongs to another key.",
                param="previous_response_id",
            )
        return stored.items


def _new_items(body: Body) -> list[Any]:
    if isinstance(body.input, list):
        check_depth(body.input, "input")
        return body.input
    return [] if body.input is None else [{"role": "user", "content": body.input}]


def _refuse_unsupported(body: Body) -> None:
    """Refuse, by name, what would change the answer if it were honoured; silence would be a wrong answer."""
    if body.previous_response_id is None and body.input is None:
        raise InvalidRequestError("`input` is required and missing.", param="input")
    if body.background:
        raise unsupported("background", "`background` is", "leave it out")
    for name in ("context_management", "conversation", "moderation", "prompt"):
        if getattr(body, name):
            raise unsupported(name, f"`{name}` is", "leave it out")
    if body.text is not None and body.text.format is not None and body.text.format.type != "text":
        raise unsupported("text.format", f"`text.format` of type `{body.text.format.type}` is", "use type `text`")


def _tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    """The tools in the form of Chat Completions, which is the one that chat templates know."""
    nested = []
    for index, definition in enumerate(body.tools or ()):
        path = f"tools[{index}]"
        tool = convert(definition, FunctionTool, path)
        if tool.type != "function":
            raise unsupported(f"{path}.type", f"A tool of type `{tool.type}` (`{path}`) is", "use type `function`")
        if tool.name is None:
            raise InvalidRequestError(f"`{path}.name` is required and missing.", param=f"{path}.name")
        function = {
            name: value
            for name, value in definition.items()
            if name in ("name", "description", "parameters", "strict") and value is not None
        }
        nested.append({"type": "function", "function": function})
    return shown_tools(nested, body.tool_choice)
