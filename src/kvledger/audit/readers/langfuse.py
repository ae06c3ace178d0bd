"""Langfuse exports: observations of type GENERATION, alone or within their traces.

Source: langfuse.com, Public API and data export; usage types as its integrations name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.audit.readers.exchange import dialect, is_body
from kvledger.audit.readers.fields import Json, first_text, json_object, parsed, provider_name, seconds
from kvledger.audit.readers.reader import Found, Stateless, recorded
from kvledger.audit.record import Source, Unread
from kvledger.errors import InvalidRequestError

_READ = ("cache_read_input_tokens", "input_cached_tokens", "input_cache_read", "cached_tokens")
_WRITTEN = ("cache_creation_input_tokens", "input_cache_creation", "input_cache_write")


class LangfuseReader(Stateless):
    def claims(self, item: Json) -> bool:
        if isinstance(item.get("observations"), list):
            return True
        return (
            isinstance(item.get("type"), str)
            and ("traceId" in item or "trace_id" in item)
            and _starts(item) is not None
        )

    def read(self, item: Json, source: Source) -> Found:
        if isinstance(item.get("observations"), list):
            session = first_text(item, ("sessionId", "session_id"))
            for observation in item["observations"]:
                if isinstance(observation, Mapping):
                    yield from self._observation(observation, source, session)
            return
        yield from self._observation(item, source, first_text(item, ("sessionId", "session_id")))

    def _observation(self, item: Json, source: Source, session: str | None) -> Found:
        if item.get("type") != "GENERATION":
            yield Unread(source, f"an observation of type {item.get('type')!s:.40}, not a request to a model.")
            return
        model = first_text(item, ("model", "providedModelName", "provided_model_name")) or ""
        given = parsed(item.get("input"))
        parameters = json_object(item.get("modelParameters") or item.get("model_parameters")) or {}
        body: Json | None = None
        if isinstance(given, list):
            body = {**parameters, "model": model, "messages": given}
        elif isinstance(given, Mapping) and (is_body(given) or "messages" in given):
            body = {**parameters, "model": model, **given}
        try:
            usage = _usage(item, provider_name(None, model))
        except InvalidRequestError:
            usage = None  # said again, with its reason, below
        yield from recorded(
            source,
            named=None,
            api=dialect(body, {}, "", "") if body else "chat",
            model=model,
            usage=usage,
            body=body,
            id=first_text(item, ("id",)),
            at=_starts(item),
            began=seconds(item.get("completionStartTime") or item.get("completion_start_time")),
            conversation=session,
        )


def _starts(item: Json) -> float | None:
    return seconds(item.get("startTime") or item.get("start_time"))


def _usage(item: Json, provider: str) -> dict[str, Any] | None:
    """The usage in OpenAI's shape: Langfuse's `input` leaves out what its other input types count."""
    told = json_object(item.get("usageDetails") or item.get("usage_details")) or json_object(item.get("usage"))
    if not told:
        return None
    if "prompt_tokens" in told or "input_tokens" in told:
        return dict(told)
    read = next((told[name] for name in _READ if told.get(name)), 0)
    written = next((told[name] for name in _WRITTEN if told.get(name)), 0)
    fresh, output = told.get("input") or 0, told.get("output") or 0
    if provider in ("anthropic", "bedrock", "vertex-anthropic"):
        counts = {"input_tokens": fresh, "output_tokens": output}
        return {**counts, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
    numbers = all(isinstance(number, int) for number in (fresh, read, written))
    prompt = fresh + read + written if numbers else fresh
    reasoning = told.get("output_reasoning_tokens") or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output + reasoning if isinstance(output, int) else output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
    }
