"""What every provider's rulebook can do: a pure function of a prompt, the entries that exist, and the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kvledger.ledger.account import Account, Usage
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import ProviderPrompt


class TokenCounter(Protocol):
    """Counts the tokens of a text, exactly or by an estimate that says so."""

    def count(self, text: str) -> int: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """An account, and the entries as they are once it has happened: what was read, with its life renewed, at once;
    what is written, from the moment the response begins.

    `written` carries `readable_at` and `expires_at` by the request's own start; whoever knows when the response began
    puts them with `readable_at` set to that.
    """

    account: Account
    renewed: tuple[Entry, ...] = ()
    written: tuple[Entry, ...] = ()


class Rulebook(Protocol):
    """One provider's caching rules. Rules are dated: a request is judged by the edition in force at its time."""

    provider: str

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """Read a request body (`api` names the wire format where a provider has several: "chat", "responses").

        Raises `InvalidRequestError` with the path of what the provider would refuse (a fifth mark, a short lifetime
        before a long one). Unknown fields and block types are kept as parts or settings, never dropped.
        """
        ...

    def judge(
        self, prompt: ProviderPrompt, entries: EntryStore, at: float, *, earlier: ProviderPrompt | None = None
    ) -> Verdict:
        """The account of `prompt` at `at` (seconds since the epoch, the request's start). Changes nothing.

        `earlier` is the nearest earlier prompt, where known: breaks then say where the two first differ.
        """
        ...

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        """Read a provider's raw usage object; raises `InvalidRequestError` naming the field that cannot be true."""
        ...
