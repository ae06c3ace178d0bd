"""The same requests under a rulebook, in the order of time: as they were, or with every prompt changed first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from kvledger.audit.costs import Costs
from kvledger.audit.request import Request
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Split, Usage
from kvledger.providers.catalogue import rulebook
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.prompt import ProviderPrompt

ENTRIES = 500_000
"""Entries remembered by one replay: more than a provider's caches hold alive of one log."""

WORTH_A_LOOK = 192
"""Tokens of an earlier prompt that were not read, from which on it is asked why: more than any step of a rule."""

Edit = Callable[[Request, ProviderPrompt], ProviderPrompt]
"""A change of one request's prompt, already in the provider's tokens."""


@dataclass(slots=True)
class Replay:
    """What a replay came to: money in units, None where a price is unknown, and tokens. `high` is the cost if wherever
    a rule is in doubt nothing were read."""

    cost: int | None = 0
    high: int | None = 0
    tokens: int = 0
    read: int = 0

    @property
    def hit_rate(self) -> float | None:
        return self.read / self.tokens if self.tokens else None

    def add(self, account: Account, usage: Usage, model: str, request: Request, costs: Costs) -> None:
        """Count one request in, billed as `usage`."""
        split = usage.split
        self.tokens += split.prompt_tokens
        self.read += split.read
        cost = costs.cost_of(request.provider, model, usage, request.at)
        high = cost
        if not account.certain and split.read:
            unread = replace(usage, split=Split(split.prompt_tokens, fresh=split.prompt_tokens))
            high = costs.cost_of(request.provider, model, unread, request.at)
        self.cost = None if self.cost is None or isinstance(cost, str) else self.cost + cost
        self.high = None if self.high is None or isinstance(high, str) else self.high + high


class Judge:
    """Judges requests one after another against the entries that those before them left."""

    def __init__(self, *, began_at_once: bool = False) -> None:
        """With `began_at_once` every response begins when its request does."""
        self._entries = MemoryEntries(ENTRIES)
        self._at_once = began_at_once

    def account(self, request: Request, prompt: ProviderPrompt, earlier: Request | None = None) -> Account:
        """The account of a prompt. Breaks are told in full where it might have read more of what `earlier` sent.

        Raises `InvalidRequestError` where the provider has no rules for the model.
        """
        rules = rulebook(request.provider)
        verdict = rules.judge(prompt, self._entries, request.at)
        if earlier is not None and earlier.prompt is not None:
            split = verdict.account.split
            if min(earlier.tokens, split.prompt_tokens) - split.read >= WORTH_A_LOOK:
                verdict = rules.judge(prompt, self._entries, request.at, earlier=earlier.scaled())
        written = verdict.written
        if request.began is not None and request.began > request.at and not self._at_once:
            written = tuple(replace(entry, readable_at=request.began) for entry in written)
        self._entries.put(verdict.renewed)
        self._entries.put(written)
        return verdict.account


def replay(
    requests: Iterable[Request],
    costs: Costs,
    edit: Edit | None = None,
    *,
    provider: str = "",
    bill: Callable[[Usage], Usage] | None = None,
    began_at_once: bool = False,
) -> Replay:
    """Judge and price all requests that have a prompt; `bill` changes what is billed (a batch), `provider` whose rules
    and prices hold. A request of which an edited prompt's model is unknown makes the cost unknown."""
    judge, result = Judge(began_at_once=began_at_once), Replay()
    for one in requests:
        if one.prompt is None:
            continue
        request = replace(one, provider=provider) if provider else one
        prompt = one.scaled()
        if edit is not None:
            prompt = edit(request, prompt)
        try:
            account = judge.account(request, prompt)
        except InvalidRequestError:
            if edit is not None and prompt.model != one.prompt.model:
                result.cost = result.high = None
            continue  # the audit has named it among the residuals
        split, model = account.split, one.model if prompt.model == one.prompt.model else prompt.model
        usage = request.used(split)
        if prompt.model != one.prompt.model or provider:
            usage = Usage(split, usage.output, usage.reasoning)
        result.add(account, bill(usage) if bill else usage, model, request, costs)
    return result


def in_scopes(requests: Sequence[Request], some: Iterable[Request]) -> list[Request]:
    """All requests that share a cache with some of them."""
    scopes = {(request.provider, request.key) for request in some}
    return [request for request in requests if (request.provider, request.key) in scopes]
