"""HAR files (HTTP Archive 1.2): recorded HTTP exchanges, of which some went to a model."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from kvledger.audit.readers.exchange import exchanged, is_body
from kvledger.audit.readers.fields import Json, first_text, json_object, seconds
from kvledger.audit.readers.reader import Found, Stateless
from kvledger.audit.record import Source, Unread


class HarReader(Stateless):
    def claims(self, item: Json) -> bool:
        log = item.get("log")
        return isinstance(log, Mapping) and isinstance(log.get("entries"), list)

    def read(self, item: Json, source: Source) -> Found:
        others = 0
        for number, entry in enumerate(item["log"]["entries"], 1):
            request = json_object(entry.get("request")) if isinstance(entry, Mapping) else None
            body = json_object((json_object((request or {}).get("postData")) or {}).get("text"))
            if request is None or not is_body(body):
                others += 1
                continue
            assert body is not None
            yield from _entry(entry, request, body, Source(source.file, number))
        if others:
            yield Unread(source, "entries that are no requests to a model.", others)


def _entry(entry: Json, request: Json, body: Json, source: Source) -> Found:
    response = json_object(entry.get("response")) or {}
    began = at = seconds(entry.get("startedDateTime"))
    timings = json_object(entry.get("timings")) or {}
    waited = [timings.get(name) for name in ("blocked", "dns", "connect", "send", "wait")]
    if at is not None and isinstance(timings.get("wait"), int | float):
        began = at + sum(ms for ms in waited if isinstance(ms, int | float) and ms > 0) / 1000
    beside = {"at": at, "began": began, "status_code": response.get("status")}
    yield from exchanged(beside, source, body, _text(response), first_text(request, ("url",)) or "")


def _text(response: Json) -> Any:
    content = json_object(response.get("content")) or {}
    text = content.get("text")
    if content.get("encoding") == "base64" and isinstance(text, str):
        try:
            return base64.b64decode(text).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return None
    return text
