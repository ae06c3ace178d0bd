"""OpenTelemetry's GenAI spans, as OTLP JSON: resourceSpans, or one span a line.

Source: opentelemetry.io, semantic conventions for generative AI (gen_ai.*), 1.38; older `gen_ai.system` and indexed
`gen_ai.prompt.N.*` attributes are read too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvledger.audit.readers.fields import Json, parsed, provider_name, seconds
from kvledger.audit.readers.reader import Found, Stateless, recorded
from kvledger.audit.record import Source, Unread
from kvledger.errors import InvalidRequestError

_INDEXED = re.compile(r"gen_ai\.prompt\.(\d+)\.(role|content)")


class OtelReader(Stateless):
    def claims(self, item: Json) -> bool:
        return isinstance(item.get("resourceSpans"), list) or ("attributes" in item and "startTimeUnixNano" in item)

    def read(self, item: Json, source: Source) -> Found:
        others = 0
        for span in _spans(item):
            told = _attributes(span.get("attributes"))
            for event in span.get("events") or ():
                if isinstance(event, Mapping):
                    told |= _attributes(event.get("attributes"))
            if not any(name in told for name in ("gen_ai.request.model", "gen_ai.response.model")):
                others += 1
                continue
            yield from _request(span, told, source)
        if others:
            yield Unread(source, "spans that are no requests to a model.", others)


def _request(span: Json, told: Json, source: Source) -> Found:
    named = told.get("gen_ai.provider.name") or told.get("gen_ai.system")
    model = told.get("gen_ai.request.model") or told.get("gen_ai.response.model")
    try:
        usage = _usage(told, provider_name(named, str(model)))
    except InvalidRequestError as error:
        yield Unread(source, str(error))
        return
    yield from recorded(
        source,
        named=named,
        api="chat",
        model=model,
        usage=usage,
        body=_body(told, model),
        id=told.get("gen_ai.response.id"),
        at=seconds(span.get("startTimeUnixNano")),
        conversation=told.get("gen_ai.conversation.id") or told.get("session.id"),
    )


def _usage(told: Json, provider: str) -> dict[str, Any] | None:
    """Input tokens include what was cached, by the conventions."""
    prompt = _number(told, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
    if prompt is None:
        return None
    read = _number(told, "gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens") or 0
    written = _number(told, "gen_ai.usage.cache_creation.input_tokens", "gen_ai.usage.cache_creation_input_tokens") or 0
    output = _number(told, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens") or 0
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    if provider in ("anthropic", "bedrock", "vertex-anthropic"):
        return {**usage, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    return {**usage, "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written}}


def _body(told: Json, model: Any) -> dict[str, Any] | None:
    messages = parsed(told.get("gen_ai.input.messages"))
    found = [_message(one) for one in messages if isinstance(one, Mapping)] if isinstance(messages, list) else []
    if not found:
        indexed: dict[int, dict[str, Any]] = {}
        for name, value in told.items():
            if match := _INDEXED.fullmatch(name):
                indexed.setdefault(int(match[1]), {})[match[2]] = value
        found = [{"role": "user", **indexed[index]} for index in sorted(indexed)]
    if not found:
        return None
    system = parsed(told.get("gen_ai.system_instructions"))
    if system:
        parts = system if isinstance(system, list) else [system]
        found.insert(0, {"role": "system", "content": [_block(part) for part in parts]})
    tools = parsed(told.get("gen_ai.tool.definitions"))
    return {"model": model, **({"tools": tools} if isinstance(tools, list) else {}), "messages": found}


def _message(message: Json) -> dict[str, Any]:
    if not isinstance(message.get("parts"), list):
        return dict(message)
    return {"role": message.get("role"), "content": [_block(part) for part in message["parts"]]}


def _block(part: Any) -> dict[str, Any]:
    if isinstance(part, Mapping):
        if part.get("type") == "text":
            return {"type": "text", "text": part.get("content", part.get("text", ""))}
        return dict(part)
    return {"type": "text", "text": str(part)}


def _spans(item: Json) -> Iterator[Json]:
    if "resourceSpans" not in item:
        yield item
        return
    for resource in item["resourceSpans"]:
        for scope in (resource.get("scopeSpans") or ()) if isinstance(resource, Mapping) else ():
            for span in (scope.get("spans") or ()) if isinstance(scope, Mapping) else ():
                if isinstance(span, Mapping):
                    yield span


def _attributes(listed: Any) -> dict[str, Any]:
    if isinstance(listed, Mapping):
        return dict(listed)
    named = [one for one in listed or () if isinstance(one, Mapping) and one.get("key")]
    return {str(one["key"]): _value(one.get("value")) for one in named}


def _value(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if "intValue" in value:
        return _integer(value["intValue"])
    if "arrayValue" in value:
        inner = value["arrayValue"]
        return [_value(one) for one in (inner.get("values") or ())] if isinstance(inner, Mapping) else []
    if "kvlistValue" in value:
        inner = value["kvlistValue"]
        return _attributes(inner.get("values")) if isinstance(inner, Mapping) else {}
    return next(iter(value.values()), None)


def _integer(value: Any) -> Any:
    """OTLP JSON writes 64-bit integers as text."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return value


def _number(told: Json, *names: str) -> Any:
    return next((told[name] for name in names if told.get(name) is not None), None)
