"""Values that every form of log writes in its own way: times, names, providers, bodies, usage."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.providers.catalogue import provider_named, provider_of, read_usage
from kvledger.providers.reported import compatible_usage

MAX_TOKENS = 100_000_000
"""No request has as many tokens: larger counts are mistakes of the log."""

Json = Mapping[str, Any]

TIMES = ("ts", "timestamp", "time", "at", "created_at", "start_time", "startTime", "started_at", "request_time", "date")
BEGAN = ("began", "first_token_at", "completionStartTime", "completion_start_time")
CONVERSATIONS = ("conversation", "conversation_id", "session_id", "sessionId", "session", "thread_id", "chat_id")
KEYS = ("key", "api_key_name", "key_name", "key_alias", "workspace_id", "workspace", "organization_id", "organization")

_NAMES = {
    "vertex_ai": "vertex",
    "vertex_ai_beta": "vertex",
    "gcp.vertex_ai": "vertex",
    "gcp.gemini": "gemini",
    "gcp.gen_ai": "gemini",
    "azure_ai": "azure",
    "azure.ai.openai": "azure",
    "az.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "bedrock_converse": "bedrock",
    "aws.bedrock": "bedrock",
    "fireworks_ai": "fireworks",
    "text-completion-openai": "openai",
    "mistral_ai": "mistral",
    "x_ai": "xai",
}
"""Names of providers that LiteLLM and OpenTelemetry write -> ours."""

_HOSTS = (
    (r"anthropic\.com", "anthropic"),
    (r"openai\.azure\.com|cognitiveservices\.azure\.com", "azure"),
    (r"openai\.com|chatgpt\.com", "openai"),
    (r"generativelanguage\.googleapis\.com", "gemini"),
    (r"aiplatform\.googleapis\.com", "vertex"),
    (r"bedrock-runtime\.", "bedrock"),
    (r"deepseek\.com", "deepseek"),
    (r"dashscope", "qwen"),
    (r"moonshot\.", "kimi"),
    (r"groq\.com", "groq"),
    (r"mistral\.ai", "mistral"),
    (r"api\.x\.ai", "xai"),
    (r"bigmodel\.cn|z\.ai", "zai"),
    (r"fireworks\.ai", "fireworks"),
)

_ANTHROPIC = frozenset(("anthropic", "bedrock", "vertex-anthropic"))
_GEMINI = frozenset(("gemini", "vertex"))
_OWN = {"messages": "anthropic", "gemini": "gemini", "responses": "openai"}


def seconds(value: Any) -> float | None:
    """A time as seconds since the Unix epoch: ISO 8601 (UTC unless it says otherwise), or a number of seconds, milli-,
    micro- or nanoseconds, told apart by size. None for anything else."""
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value.strip())
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
        else:
            return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return None
    for limit, unit in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
        if value < limit:
            return value / unit
    return value / 1e9


def first_time(item: Json, names: Iterable[str]) -> float | None:
    """The first of the fields that holds a time."""
    return next((at for name in names if (at := seconds(item.get(name))) is not None), None)


def first_text(item: Json, names: Iterable[str]) -> str | None:
    """The first of the fields that holds a name or a number."""
    for name in names:
        value = item.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def json_object(value: Any) -> Json | None:
    """An object, or a text that is one as JSON; None for anything else."""
    value = parsed(value)
    return value if isinstance(value, Mapping) else None


def parsed(value: Any) -> Any:
    """A text that holds a JSON object or array as that, all else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return value
    return value


def host_provider(url: str) -> str:
    """The provider whose host a URL names, empty if unknown."""
    return next((name for pattern, name in _HOSTS if re.search(pattern, url)), "")


def provider_name(named: Any, model: str, api: str = "") -> str:
    """The provider by the log's own word for it, else by the model's name, else by a wire format that only one has.

    Raises `InvalidRequestError` where none of them says.
    """
    if isinstance(named, str) and named:
        name = _NAMES.get(named.lower(), named)
        if name == "vertex" and "claude" in model:
            name = "vertex-anthropic"
        return provider_named(name).name
    try:
        return provider_of(model).name
    except InvalidRequestError:
        if api in _OWN:
            return _OWN[api]
        raise


def own_api(provider: str, api: str) -> str:
    """The wire format's name in the catalogue: of providers with one format, that one."""
    if provider in _ANTHROPIC:
        return "messages"
    return "" if provider in _GEMINI else api or "chat"


def usage_of(provider: str, api: str, reported: Any) -> Usage:
    """Read a usage object by its shape: the provider's own, or OpenAI's as gateways write it for every provider.

    Raises `InvalidRequestError` for what cannot be true.
    """
    if not isinstance(reported, Mapping):
        raise InvalidRequestError(f"`usage` must be an object, not {type(reported).__name__}.", param="usage")
    try:
        if "prompt_tokens" in reported and provider in _ANTHROPIC:
            usage = read_usage(provider, _disjoint(reported))
        elif "prompt_tokens" in reported and provider in _GEMINI:
            usage = compatible_usage(reported)
        elif "input_tokens" in reported and "cache_read_input_tokens" in reported and provider not in _ANTHROPIC:
            usage = read_usage("anthropic", reported)
        else:
            usage = read_usage(provider, reported, api=api)
    except (ValueError, TypeError) as error:
        raise InvalidRequestError(f"`usage` cannot be read ({error}).", param="usage") from error
    most = max(usage.split.prompt_tokens, usage.output)
    if most > MAX_TOKENS:
        raise InvalidRequestError(
            f"`usage` cannot be true: {most} tokens are more than any model takes.", param="usage"
        )
    return usage


def _disjoint(reported: Json) -> dict[str, Any]:
    """Claude's counts from a gateway's: its `prompt_tokens` include what was cached, except in old versions."""
    details = reported.get("prompt_tokens_details")
    details = details if isinstance(details, Mapping) else {}
    read = reported.get("cache_read_input_tokens") or details.get("cached_tokens") or 0
    written = reported.get("cache_creation_input_tokens") or details.get("cache_creation_tokens") or 0
    fresh = reported.get("prompt_tokens")
    cached = [read, written]
    if isinstance(fresh, int) and all(isinstance(count, int) for count in cached) and fresh >= sum(cached):
        fresh -= sum(cached)
    return {
        **{name: value for name, value in reported.items() if name in ("service_tier", "cache_creation", "speed")},
        "input_tokens": fresh,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": reported.get("completion_tokens") or 0,
    }
