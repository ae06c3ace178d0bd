"""A response as one object, also where the log holds the events of its stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from kvledger.audit.readers.fields import Json, parsed
from kvledger.providers.anthropic.usage import merged

_USAGE = ("usage", "usageMetadata")
_KEPT = ("id", "responseId", "model", "modelVersion", "created", "created_at", "service_tier", "error")


def answer(raw: Any) -> dict[str, Any] | None:
    """The response object: as it is, from JSON text, or put together from server-sent events; None if there is none."""
    if isinstance(raw, str) and ("data:" in raw[:4096]):
        return _assembled(_events(raw))
    raw = parsed(raw)
    if isinstance(raw, Mapping):
        return dict(raw)
    if isinstance(raw, list) and raw and all(isinstance(event, Mapping) for event in raw):
        return _assembled(raw)
    return None


def _events(text: str) -> Iterator[Json]:
    for line in text.splitlines():
        if line.startswith("data:") and line[5:].lstrip().startswith("{"):
            try:
                event = msgspec.json.decode(line[5:].strip())
            except (msgspec.DecodeError, RecursionError):
                continue  # a stream that was cut off ends in half an event
            if isinstance(event, Mapping):
                yield event


def _assembled(events: Iterable[Json]) -> dict[str, Any]:
    """What the events say of the whole: of each kind of stream its last word on ids, model, usage and end."""
    whole: dict[str, Any] = {}
    usages: list[Json] = []
    for event in events:
        inner = event.get("response") if isinstance(event.get("response"), Mapping) else event.get("message")
        source = {**event, **inner} if isinstance(inner, Mapping) else event
        kind = event.get("type")
        if kind == "message_delta" and isinstance(event.get("delta"), Mapping):
            whole["stop_reason"] = event["delta"].get("stop_reason")
        for name, value in source.items():
            if name in _USAGE and isinstance(value, Mapping):
                usages.append({"_": name, **value})
            elif name in (
                "id",
                "responseId",
                "model",
                "modelVersion",
                "created",
                "created_at",
                "service_tier",
                "error",
            ):
                if value is not None:
                    whole[name] = value
            elif name in ("choices", "candidates", "object", "status", "output") and value:
                whole[name] = value
        if kind == "message_start":
            whole["type"] = "message"
    if usages:
        total = merged(usages)
        whole[total.pop("_")] = total
    return whole
