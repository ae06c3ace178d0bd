"""Batch files of OpenAI, Anthropic and Gemini: requests in one file, results in another, joined by the caller's id."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvledger.audit.readers.exchange import exchanged
from kvledger.audit.readers.fields import Json, first_text, json_object
from kvledger.audit.readers.reader import Found
from kvledger.audit.record import Record, Source, Unread


@dataclass(frozen=True, slots=True)
class _Half:
    source: Source
    item: Json


class BatchReader:
    """Holds the requests and results that have not found each other, at the end tells of those that never did."""

    def __init__(self) -> None:
        self._requests: dict[str, _Half] = {}
        self._results: dict[str, _Half] = {}

    def claims(self, item: Json) -> bool:
        return _id(item) is not None and (_body(item) is not None or "response" in item or "result" in item)

    def read(self, item: Json, source: Source) -> Found:
        identity = _id(item)
        assert identity is not None
        half = _Half(source, item)
        mine, others = (self._requests, self._results) if _body(item) is not None else (self._results, self._requests)
        other = others.pop(identity, None)
        if other is None:
            if identity in mine:  # an id of another batch
                yield from self._alone(mine[identity])
            mine[identity] = half
            return
        request, result = (half, other) if mine is self._requests else (other, half)
        yield from _joined(request, result)

    def end_file(self) -> Found:
        yield from ()

    def end(self) -> Found:
        for half in (*self._requests.values(), *self._results.values()):
            yield from self._alone(half)
        self._requests.clear()
        self._results.clear()

    def _alone(self, half: _Half) -> Found:
        body = _body(half.item)
        yield from _joined(half, None) if body is not None else _joined(None, half)


def _joined(request: _Half | None, result: _Half | None) -> Found:
    half = request or result
    assert half is not None
    item = half.item
    body = _body(item) if request else None
    raw = _answer(result.item) if result else None
    if body is not None:
        beside = {"at": item.get("at")}
        found = exchanged(beside, half.source, body, raw, first_text(item, ("url",)) or "")
    else:
        found = _usage_only(half.source, raw)
    for record in found:
        if isinstance(record, Record) and record.usage is not None:
            yield replace(record, usage=replace(record.usage, service_tier="batch"))
        else:
            yield record


def _usage_only(source: Source, raw: Any) -> Found:
    from kvledger.audit.readers.usage_rows import UsageReader  # noqa: PLC0415 (the rarest half)

    outer = json_object(raw) or {}
    response = json_object(outer.get("body")) or outer
    if response.get("error") or not UsageReader().claims(response):
        yield Unread(source, "this result of a batch is an error or has no usage: nothing was billed.")
        return
    yield from UsageReader().read(response, source)


def _id(item: Json) -> str | None:
    return first_text(item, ("custom_id",)) or (first_text(item, ("key",)) if _is_gemini(item) else None)


def _is_gemini(item: Json) -> bool:
    inner = json_object(item.get("request")) or json_object(item.get("response"))
    return inner is not None and ("contents" in inner or "candidates" in inner or "usageMetadata" in inner)


def _body(item: Json) -> Json | None:
    for name in ("body", "params", "request"):
        if isinstance(found := item.get(name), Mapping) and not {"response", "result"} & item.keys():
            return found
    return None


def _answer(item: Json) -> Any:
    result = item.get("result")
    if isinstance(result, Mapping):
        return result.get("message") or {"error": result.get("error") or result.get("type") or "no message"}
    return item.get("response") or {"error": item.get("error") or "no response"}
