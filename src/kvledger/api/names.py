"""Which model a name in a request means: the local one, or a provider's, by whose rules and prices it then goes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from kvledger.api.errors import Refusal
from kvledger.errors import InvalidRequestError
from kvledger.providers.catalogue import known_models, provider_named, rulebook, split_name
from kvledger.providers.rulebook import Rulebook

LOCAL = "kvledger"
"""The provider on receipts of the model's own name, which no provider's rules or prices apply to."""

_SPEAK_MESSAGES = frozenset(("anthropic", "bedrock", "vertex-anthropic"))
_SPEAK_GENERATE = frozenset(("gemini", "vertex"))
_ROUTES = {
    "chat": "POST /v1/chat/completions",
    "responses": "POST /v1/responses",
    "messages": "POST /v1/messages",
    "generate": "POST /v1beta/models/MODEL:generateContent",
}


@dataclass(frozen=True, slots=True)
class Named:
    """A model as it was asked for: `model` is the name that answers repeat. `rules` is None for the local one."""

    provider: str
    model: str
    rules: Rulebook | None = None


class Names:
    """The names that this server answers to. All of them lead to the same model."""

    def __init__(self, local: Sequence[str], persona: str | None = None) -> None:
        """`local` are the model's own names, the first the one to show. `persona`, a provider's model such as
        `anthropic:claude-sonnet-5.5`, is what every request is then answered as, whatever name it has.

        Raises `InvalidRequestError` for a persona that is none.
        """
        self.local = tuple(local)
        self.persona: Named | None = None
        if persona is not None:
            provider, model = split_name(persona)
            self.persona = Named(provider.name, model, rulebook(provider.name))

    @property
    def listed(self) -> tuple[str, ...]:
        """What a list of models shows. Every other name that a rulebook knows is answered to as well."""
        return (self.persona.model,) if self.persona else self.local

    def find(self, name: str, api: str) -> Named:
        """What `name` means in a request of the format `api`; raises `Refusal` with 404 and near names."""
        if self.persona is not None:
            return self._spoken(self.persona, api)
        if name in self.local:
            return Named(LOCAL, name)
        try:
            provider, model = split_name(name)
        except InvalidRequestError:
            raise self.unknown(name) from None
        return self._spoken(Named(provider.name, model, rulebook(provider.name)), api)

    def show(self, name: str) -> str:
        """`name` if a request may have it; raises `Refusal` with 404."""
        if name not in self.listed and name not in self.local:
            try:
                split_name(name)
            except InvalidRequestError:
                raise self.unknown(name) from None
        return name

    def unknown(self, name: str) -> Refusal:
        """The error for a name that nobody knows."""
        near = difflib.get_close_matches(name.lower(), (*self.local, *known_models()), n=3, cutoff=0.6)
        others = f", or perhaps {' or '.join(near)}" if near else ", or a provider's model that has caching rules"
        return Refusal(
            HTTPStatus.NOT_FOUND,
            f"The model `{name[:80]}` is not served here: use `{self.listed[0]}`{others}.",
            param="model",
            code="model_not_found",
        )

    @staticmethod
    def _spoken(named: Named, api: str) -> Named:
        """`named`, if its provider speaks `api`."""
        speaks: tuple[str, ...]
        if named.provider in _SPEAK_MESSAGES:
            speaks = ("messages",)
        elif named.provider in _SPEAK_GENERATE:
            speaks = ("generate",)
        else:
            speaks = ("chat", "responses")
        if api not in speaks:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"The model `{named.model[:80]}` is {provider_named(named.provider).name}'s:"
                f" ask for it with {' or '.join(_ROUTES[each] for each in speaks)}.",
                param="model",
                code="model_not_found",
            )
        return named
