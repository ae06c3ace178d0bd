"""One request body from a file: by itself, or in the envelope of a log line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kvledger.audit.normalise import Bytes
from kvledger.audit.readers.bodies import body_for
from kvledger.audit.readers.exchange import dialect, is_body
from kvledger.audit.readers.fields import Json, own_api, provider_name
from kvledger.errors import AuditError, InvalidRequestError
from kvledger.providers.catalogue import PROVIDERS, rulebook
from kvledger.providers.prompt import ProviderPrompt

_ENVELOPES = ("request", "request_body", "body", "params")


def read_body(path: Path) -> Json:
    """The body in a JSON file; raises `AuditError` if there is none."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise AuditError(f"There is no file {path}: give a request body as JSON.") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise AuditError(f"{path} is not JSON ({error}): give one request body.") from error
    for body in (found, *((found.get(name) for name in _ENVELOPES) if isinstance(found, Mapping) else ())):
        if is_body(body):
            return dict(body)
    raise AuditError(f"{path} is no request body: it has neither `messages`, `contents` nor `model` with `input`.")


def prompt_of(body: Json, provider: str | None = None) -> ProviderPrompt:
    """The body as a provider's cache reads it, by that provider or the one that the model's name says.

    Tokens are estimated (`normalise.Bytes`). Raises `InvalidRequestError` where the provider has no rules for it.
    """
    api = dialect(body, {}, "", "")
    name = provider_name(provider, str(body.get("model", "")), api)
    counter = Bytes()
    return rulebook(name).prompt(body_for(name, api, body), scope="", counter=counter, api=own_api(name, api))


def prompts_of(body: Json, at: float) -> list[tuple[str, ProviderPrompt]]:
    """The body as each provider reads it, by name, that has rules for its model at a time; raises if none has."""
    from kvledger.providers.entries import MemoryEntries  # noqa: PLC0415 (only to ask whether there are rules)

    found: list[tuple[str, ProviderPrompt]] = []
    for provider in PROVIDERS:
        try:
            prompt = prompt_of(body, provider.name)
            rulebook(provider.name).judge(prompt, MemoryEntries(), at)
        except InvalidRequestError:
            continue
        found.append((provider.name, prompt))
    if not found:
        prompt = prompt_of(body)
        raise InvalidRequestError(f"No provider has caching rules for {prompt.model[:80]}.", param="model")
    return found
