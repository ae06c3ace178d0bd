"""Requests with their responses, as middleware writes them: OpenAI Chat and Responses, Anthropic, Gemini."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvledger.audit.readers.fields import (
    BEGAN,
    CONVERSATIONS,
    KEYS,
    TIMES,
    Json,
    first_text,
    first_time,
    host_provider,
    json_object,
)
from kvledger.audit.readers.reader import Found, Stateless, recorded
from kvledger.audit.readers.streams import answer
from kvledger.audit.record import Source, Unread

_REQUESTS = ("request", "request_body", "requestBody", "req", "body", "input", "kwargs")
_RESPONSES = ("response", "response_body", "responseBody", "resp", "output", "completion", "result")
_MODEL_PATH = re.compile(r"models?/([^/:?]+)")
_STATES = ("duration", "duration_ms", "latency", "latency_ms", "status", "status_code")
_IDS = ("id", "response_id", "request_id", "url", "provider", "api")
_BESIDE = frozenset((*TIMES, *BEGAN, *CONVERSATIONS, *KEYS, *_RESPONSES, *_STATES, *_IDS, "usage", "usageMetadata"))
"""Fields of a line that is a body itself which are no parameters of it."""


class ExchangeReader(Stateless):
    """A line with a request, or that is one, and mostly its response."""

    def claims(self, item: Json) -> bool:
        return is_body(item) or any(is_body(_inner(item.get(name))) for name in _REQUESTS)

    def read(self, item: Json, source: Source) -> Found:
        body = next((b for name in _REQUESTS if is_body(b := _inner(item.get(name)))), None)
        outer = next((o for name in _REQUESTS if isinstance(o := item.get(name), Mapping)), {})
        url = first_text(item, ("url",)) or first_text(outer, ("url", "path")) or ""
        if body is None or (is_body(item) and "messages" in item):
            body = {name: value for name, value in item.items() if name not in _BESIDE}
        raw = next((item[name] for name in _RESPONSES if item.get(name) is not None), None)
        yield from exchanged(item, source, body, raw, url)


def exchanged(item: Json, source: Source, body: Json, raw: Any, url: str = "") -> Found:
    """The record of a body and of what came back, `item` holding what else is known of the two."""
    outer = json_object(raw)
    status = (outer or {}).get("status_code", (outer or {}).get("status", item.get("status_code")))
    response = answer(outer.get("body", raw) if outer is not None and not _is_answer(outer) else raw) or {}
    error = response.get("error") or (item.get("error") if not response else None)
    if error or (isinstance(status, int) and status >= 400):
        shown = error.get("message", error) if isinstance(error, Mapping) else error
        yield Unread(source, f"the provider refused it ({shown or status!s:.80}): nothing was billed.")
        return
    api = dialect(body, response, first_text(item, ("api",)) or "", url)
    usage = response.get("usage") or response.get("usageMetadata") or response.get("usage_metadata")
    usage = usage or item.get("usage") or item.get("usageMetadata")
    if isinstance(usage, Mapping) and api != "gemini" and "service_tier" not in usage and response.get("service_tier"):
        usage = {**usage, "service_tier": response["service_tier"]}
    path = _MODEL_PATH.search(url)
    model = body.get("model") or item.get("model") or response.get("model") or response.get("modelVersion")
    at = first_time(item, TIMES)
    began = first_time(item, BEGAN)
    yield from recorded(
        source,
        named=first_text(item, ("provider",)) or host_provider(url),
        api=api,
        model=model or (path[1] if path else ""),
        usage=usage,
        body=body,
        id=first_text(response, ("id", "responseId")) or first_text(item, ("response_id",)),
        at=at if at is not None else first_time(response, ("created", "created_at")),
        began=began,
        key=first_text(item, KEYS),
        conversation=first_text(item, CONVERSATIONS),
        output=response.get("output") if api == "responses" else None,
        complete=not response or _finished(response),
    )


def is_body(value: Any) -> bool:
    """Whether an object is a request body of one of the wire formats."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("messages"), list) or isinstance(value.get("contents"), list):
        return True
    return "input" in value and isinstance(value.get("model"), str) and isinstance(value["input"], str | list)


def dialect(body: Json, response: Json, named: str, url: str) -> str:
    """Which wire format a body is in: "chat", "responses", "messages" or "gemini"."""
    if named in ("chat", "responses", "messages", "gemini"):
        return named
    if "contents" in body or "generateContent" in url:
        return "gemini"
    if "messages" not in body:
        return "responses"
    if response.get("type") == "message" or "/v1/messages" in url or "anthropic_version" in body:
        return "messages"
    if "choices" in response or "/chat/completions" in url:
        return "chat"
    roles = {message.get("role") for message in body["messages"] if isinstance(message, Mapping)}
    if "system" in body or (
        str(body.get("model", "")).find("claude") >= 0 and not roles & {"system", "developer", "tool"}
    ):
        return "messages"
    return "chat"


def _inner(value: Any) -> Any:
    """A request's body where it stands in an envelope with URL and headers."""
    found = json_object(value)
    if found is None or is_body(found):
        return found
    return json_object(found.get("body")) or json_object(found.get("json"))


def _is_answer(value: Json) -> bool:
    return any(name in value for name in ("choices", "usage", "usageMetadata", "output", "content", "candidates"))


def _finished(response: Json) -> bool:
    if response.get("type") == "message":
        return response.get("stop_reason") is not None
    if response.get("object") == "response":
        return response.get("status") not in ("in_progress", "queued")
    return True
