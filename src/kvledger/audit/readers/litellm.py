"""LiteLLM's StandardLoggingPayload: one object a request, in OpenAI's shape whatever the provider was.

Source: docs.litellm.ai, logging spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.audit.readers.fields import Json, first_text, json_object, parsed, seconds
from kvledger.audit.readers.reader import Found, Stateless, recorded
from kvledger.audit.record import Source, Unread


class LiteLLMReader(Stateless):
    def claims(self, item: Json) -> bool:
        return "call_type" in item and "startTime" in item and "model" in item

    def read(self, item: Json, source: Source) -> Found:
        if item.get("status") == "failure":
            yield Unread(source, f"the request failed ({item.get('error_str') or 'no reason given'!s:.80}): no usage.")
            return
        if item.get("cache_hit") is True:
            yield Unread(source, "answered from the gateway's own response cache: the provider never saw it.")
            return
        metadata = json_object(item.get("metadata")) or {}
        response = json_object(item.get("response")) or {}
        usage = response.get("usage") or metadata.get("usage_object")
        if not isinstance(usage, Mapping) and item.get("prompt_tokens"):
            usage = {name: item.get(name) or 0 for name in ("prompt_tokens", "completion_tokens")}
        provider = first_text(item, ("custom_llm_provider",))
        model = _plain(str(item["model"]), provider)
        yield from recorded(
            source,
            named=provider,
            api="responses" if "responses" in str(item["call_type"]) else "chat",
            model=model,
            usage=usage,
            body=_body(item, model),
            id=first_text(response, ("id",)) or first_text(item, ("id",)),
            at=seconds(item["startTime"]),
            began=seconds(item.get("completionStartTime")),
            key=first_text(metadata, ("user_api_key_alias", "user_api_key_hash")),
            conversation=first_text(item, ("session_id",)) or first_text(metadata, ("session_id",)),
            output=response.get("output"),
        )


def _plain(model: str, provider: str | None) -> str:
    prefix, slash, rest = model.partition("/")
    return rest if slash and prefix == provider else model


def _body(item: Json, model: str) -> dict[str, Any] | None:
    messages = parsed(item.get("messages"))
    parameters = json_object(item.get("model_parameters")) or {}
    if "responses" in str(item["call_type"]):
        return {**parameters, "model": model, "input": messages} if isinstance(messages, list | str) else None
    return {**parameters, "model": model, "messages": messages} if isinstance(messages, list) else None
