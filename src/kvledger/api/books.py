"""The books of a server: what providers' caches would hold, and the receipt of every request.

An account and the physical reuse of the KV cache are found out separately and lie side by side on the receipt: neither
is derived from the other. Only a request under the model's own name has no provider; its split is the physical reuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvledger.api.auth import Caller
from kvledger.api.counted import Estimate, counted
from kvledger.api.names import LOCAL, Named
from kvledger.cache.miss import Miss
from kvledger.clock import Clock
from kvledger.engine.request import Finished, FinishReason
from kvledger.ledger.account import Account, Split, Usage
from kvledger.ledger.bill import Bill
from kvledger.ledger.budget import Answer, Budgets, Decision
from kvledger.ledger.machine import MachinePrice, machine_cost
from kvledger.ledger.prices import Prices
from kvledger.ledger.receipt import Receipt
from kvledger.providers.dialect import Asked
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.gemini.caches import CachedContents
from kvledger.providers.gemini.rules import GeminiRules
from kvledger.providers.history import History
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import Rulebook, TokenCounter, Verdict
from kvledger.text.prompt import Prompt

_SERVICE_TIERS = frozenset(("flex", "priority", "fast"))


class Writer(Protocol):
    """Where receipts go: `LedgerWriter`, or what stands in for it."""

    def submit(self, receipt: Receipt) -> Future[None]: ...


class Nowhere:
    """Keeps no receipts."""

    def submit(self, receipt: Receipt) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done


@dataclass(frozen=True, slots=True)
class Memory:
    """What the KV cache takes: bytes per token, and of its whole pool (0: unknown)."""

    token_bytes: float = 0.0
    pool_bytes: int = 0


@dataclass(slots=True)
class Page:
    """The account of one request, open until its receipt is made. `at` is its start (Unix time)."""

    id: str
    at: float
    api: str
    named: Named
    asked: Asked
    caller: Caller
    prompt: Prompt
    judged: ProviderPrompt | None
    verdict: Verdict | None
    before_engine: float = 0.0
    reused: int = 0
    """Tokens that the machine did not compute, as of the first word about it."""

    @property
    def account(self) -> Account | None:
        """The rulebook's; None for a model that no provider's rules apply to."""
        return self.verdict.account if self.verdict else None

    def usage(self, output: int = 0) -> Usage:
        """What the answer says."""
        split = self.account.split if self.account else _physical(len(self.prompt.tokens), self.reused)
        return _priced_as(Usage(split, output), self.asked) if self.named.rules else Usage(split, output)


@dataclass(slots=True)
class Books:
    """For one thread, the event loop's. `answered_by` is the model that computes; `drop` and `seed` are those of
    `GeminiRules`. A `machine_price` charges the budgets of keys for what has no other price."""

    clock: Clock
    answered_by: str
    writer: Writer = field(default_factory=Nowhere)
    prices: Prices = field(default_factory=Prices)
    budgets: Budgets | None = None
    memory: Memory = Memory()
    machine_price: MachinePrice | None = None
    gemini: GeminiRules = field(default_factory=GeminiRules)
    entries: MemoryEntries = field(init=False)
    history: History = field(init=False)
    caches: CachedContents = field(init=False)
    _storage: int = 0

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget what providers' caches would hold."""
        self.entries, self.history = MemoryEntries(), History()
        self.caches = CachedContents(self.clock, self.gemini)

    def admit(self, caller: Caller) -> Decision:
        """Whether the caller's key may make another request."""
        return self.budgets.ask(caller.key) if self.budgets and caller.key else Decision(Answer.ALLOWED)

    def read(
        self, named: Named, asked: Asked, api: str, scope: str, prompt: Prompt, counter: TokenCounter
    ) -> ProviderPrompt | None:
        """The prompt as the rulebook sees it, with the tokens of `prompt`; None for the local model. On any thread.

        Raises `InvalidRequestError` for what the provider would refuse.
        """
        if named.rules is None:
            return None
        judged = self.rules(named).prompt(asked.body, scope=scope, counter=Estimate(), api=api)
        return counted(judged, prompt, counter)

    def judge(self, page: Page, earlier: ProviderPrompt | None = None) -> None:
        """Judge a request that begins now. `earlier` is the prompt that it wants to be compared with."""
        page.at = self.clock.now()
        if page.judged is not None:
            nearest = earlier or self.history.nearest(page.judged)
            page.verdict = self.rules(page.named).judge(page.judged, self.entries, page.at, earlier=nearest)

    def enter(self, page: Page) -> None:
        """The engine took the request that was judged just now: the next one sees what it renewed."""
        if page.judged is not None and page.verdict is not None:
            self.history.add(page.judged)
            self.entries.put(page.verdict.renewed)

    def begin(self, page: Page) -> None:
        """The response begins now: from here on others can read what this request wrote."""
        if page.verdict is not None:
            now = self.clock.now()
            self.entries.put(replace(entry, readable_at=now) for entry in page.verdict.written)

    def close(self, page: Page, finished: Sequence[Finished]) -> tuple[Receipt, Future[None]]:
        """Make the receipt of a request whose sequences have all ended, and hand it to the ledger.

        An error costs nothing, as nobody bills one; what was written for a client that went away is paid for.
        """
        usages = [each.usage for each in finished]
        least = min(usages, key=lambda usage: usage.reused_tokens)
        page.reused = least.reused_tokens
        failed = next((each for each in finished if each.reason is FinishReason.ERROR), None)
        reason = (failed or max(finished, key=lambda each: _WEIGHT[each.reason])).reason
        output = 0 if page.asked.max_tokens == 0 else sum(usage.output_tokens for usage in usages)
        usage = page.usage(output)
        named = page.named
        times = {
            "queued": max(each.queued for each in usages),
            "prefill": sum(each.prefill for each in usages),
            "decode": sum(each.decode for each in usages),
        }
        first = min((u.queued + u.prefill for u in usages if u.output_tokens), default=None)
        receipt = Receipt(
            id=page.id,
            at=page.at,
            provider=named.provider,
            api=page.api,
            model=named.model,
            answered_by=self.answered_by,
            account=page.account or Account(usage.split),
            usage=usage,
            reused_tokens=page.reused,
            finish_reason=reason.value,
            bill=self._bill(named, usage, page.at, failed=failed is not None),
            tenant=page.caller.tenant,
            key=page.caller.key.name if page.caller.key else "",
            miss=_told(least.miss),
            ttft=None if first is None else page.before_engine + first,
            kv_byte_seconds=sum(
                self.memory.token_bytes
                * ((u.prompt_tokens * u.prefill) + (u.prompt_tokens + u.output_tokens) * u.decode)
                for u in usages
            ),
            kv_pool_bytes=self.memory.pool_bytes,
            message=failed.message if failed else "",
            **times,
        )
        written = self.writer.submit(receipt)
        self._charge(receipt, page.caller)
        return receipt, written

    def settle(self) -> None:
        """Receipts for what explicit caches came to cost in storage since the last time."""
        for stored in self.caches.storage():
            self._storage += 1
            now = self.clock.now()
            usage = Usage(Split(0), storage_token_seconds=stored.token_seconds)
            self.writer.submit(
                Receipt(
                    id=f"{stored.name}-{int(now * 1000)}-{self._storage}",
                    at=now,
                    provider="gemini",
                    api="cachedContents",
                    model=stored.model,
                    answered_by="",
                    account=Account(usage.split),
                    usage=usage,
                    reused_tokens=0,
                    queued=0.0,
                    prefill=0.0,
                    decode=0.0,
                    finish_reason=FinishReason.STOP.value,
                    bill=self.prices.bill("gemini", stored.model, usage, now),
                    tenant=stored.scope,
                )
            )

    def rules(self, named: Named) -> Rulebook:
        """The rulebook of a provider's model."""
        assert named.rules is not None
        return self.gemini if named.provider == "gemini" else named.rules

    def _bill(self, named: Named, usage: Usage, at: float, *, failed: bool) -> Bill:
        if failed:
            return Bill((), self.prices.edition)
        if named.provider == LOCAL:
            return Bill((), self.prices.edition, reason=f"{named.model} is this server's own: no provider has a price")
        return self.prices.bill(named.provider, named.model, usage, at)

    def _charge(self, receipt: Receipt, caller: Caller) -> None:
        if self.budgets is None or caller.key is None:
            return
        usd = receipt.bill.total
        if usd is None and receipt.provider == LOCAL and self.machine_price is not None:
            usd = machine_cost(receipt, self.machine_price).total
        self.budgets.charge(caller.key, usd, receipt.at)


_WEIGHT = {
    FinishReason.STOP: 0,
    FinishReason.LENGTH: 1,
    FinishReason.CAPACITY: 2,
    FinishReason.CANCELLED: 3,
    FinishReason.ERROR: 4,
}
"""Of several choices the one that ended worst names the request's end."""


def _physical(prompt_tokens: int, reused: int) -> Split:
    return Split(prompt_tokens, read=reused, fresh=prompt_tokens - reused)


def _priced_as(usage: Usage, asked: Asked) -> Usage:
    """`usage` with what in a body changes the price beside its tokens."""
    tier, region = asked.body.get("service_tier"), asked.body.get("inference_geo")
    return replace(
        usage,
        service_tier=str(tier) if tier in _SERVICE_TIERS else "standard",
        region=region if isinstance(region, str) else "",
        speed="fast" if asked.body.get("speed") == "fast" else "standard",
    )


def _told(miss: Miss | None) -> str:
    if miss is None:
        return ""
    return miss.reason.value + (f" at {miss.path}" if miss.path else "")
