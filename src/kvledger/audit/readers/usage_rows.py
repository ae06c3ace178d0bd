"""Rows of usage without bodies: a usage object or its counts, with a model and a time."""

from __future__ import annotations

from collections.abc import Mapping

from kvledger.audit.readers.fields import BEGAN, CONVERSATIONS, KEYS, TIMES, Json, first_text, first_time
from kvledger.audit.readers.reader import Found, Stateless, recorded
from kvledger.audit.record import Source

_OBJECTS = ("usage", "usageMetadata", "usage_metadata")
_COUNTS = ("prompt_tokens", "input_tokens", "promptTokenCount", "inputTokens")


class UsageReader(Stateless):
    """A response logged alone is such a row too."""

    def claims(self, item: Json) -> bool:
        return any(isinstance(item.get(name), Mapping) for name in _OBJECTS) or any(name in item for name in _COUNTS)

    def read(self, item: Json, source: Source) -> Found:
        usage = next((item[name] for name in _OBJECTS if isinstance(item.get(name), Mapping)), item)
        api = first_text(item, ("api",)) or ("responses" if item.get("object") == "response" else "")
        if "usageMetadata" in item:
            api = "gemini"
        yield from recorded(
            source,
            named=first_text(item, ("provider",)),
            api=api,
            model=item.get("model") or item.get("modelVersion"),
            usage=usage,
            id=first_text(item, ("id", "response_id", "responseId", "message_id")),
            at=first_time(item, (*TIMES, "created")),
            began=first_time(item, BEGAN),
            key=first_text(item, KEYS),
            conversation=first_text(item, CONVERSATIONS),
            complete=item.get("type") != "message" or item.get("stop_reason") is not None,
        )
