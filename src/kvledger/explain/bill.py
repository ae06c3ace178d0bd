"""What a conversation costs at a provider: its rulebook on every request, and its prices on what the rulebook says.

The rulebook judges what the provider would read from its cache, which has nothing to do with what this server's own
cache reuses. Tokens are counted by the local model's tokenizer: the provider's own counts differ somewhat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from kvledger.explain.chat import Turn
from kvledger.ledger.account import Account, Usage
from kvledger.ledger.bill import Statement
from kvledger.ledger.money import total
from kvledger.ledger.prices import Prices
from kvledger.providers.bodies import SYSTEM, Place, Said, compose
from kvledger.providers.catalogue import rulebook, split_name
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import TokenCounter
from kvledger.text.tokenizer import Tokenizer

MODELS = (
    "anthropic:claude-sonnet-5",
    "openai:gpt-5.5",
    "gemini:gemini-3.5-flash",
    "deepseek:deepseek-v4-flash",
    "kimi:kimi-k3",
    "qwen:qwen-plus",
)
"""One model of each provider whose rulebook differs from the others'."""


class LocalCounter:
    """Counts tokens with a local tokenizer, each text once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._counts: dict[str, int] = {}

    def count(self, text: str) -> int:
        """The tokens of `text`."""
        if text not in self._counts:
            self._counts[text] = len(self._tokenizer.encode(text))
        return self._counts[text]


@dataclass(frozen=True, slots=True)
class ProviderBill:
    """A conversation at one provider: for each turn what it reads, writes and computes, and what that costs."""

    provider: str
    model: str
    accounts: tuple[Account, ...]
    statements: tuple[Statement, ...]

    @property
    def cost(self) -> Decimal | None:
        """US dollars of all turns; None where a price is unknown."""
        return _sum([each.cost.total for each in self.statements])

    @property
    def uncached(self) -> Decimal | None:
        """The same without a cache."""
        return _sum([each.uncached.total for each in self.statements])

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why the cost is not known."""
        return tuple(dict.fromkeys(reason for each in self.statements for reason in each.cost.unknown))


def bill_conversation(name: str, turns: Sequence[Turn], counter: TokenCounter, *, at: float) -> ProviderBill:
    """The bill of a conversation that begins `at` (seconds since the Unix epoch) at `PROVIDER:MODEL`.

    Where a provider asks for marks, the system text and the last message carry one. Raises `InvalidRequestError` with
    near names for an unknown provider or model.
    """
    provider, model = split_name(name)
    rules, prices, entries = rulebook(provider.name), Prices(), MemoryEntries()
    accounts: list[Account] = []
    statements: list[Statement] = []
    earlier: ProviderPrompt | None = None
    for turn in turns:
        began = at + turn.at
        prompt = rules.prompt(_body(rules.provider, model, turn.messages), scope="", counter=counter)
        verdict = rules.judge(prompt, entries, began, earlier=earlier)
        entries.put((*verdict.renewed, *verdict.written))
        accounts.append(verdict.account)
        usage = Usage(verdict.account.split, output=turn.answer)
        statements.append(prices.statement(provider.name, model, usage, began))
        earlier = prompt
    return ProviderBill(provider.name, model, tuple(accounts), tuple(statements))


def _body(rules: str, model: str, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The request in the provider's own shape, with the marks that Anthropic's needs."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    said = [Said(message["role"], (message["content"],)) for message in messages if message["role"] != "system"]
    marks: dict[Place, str] = {}
    if rules == "anthropic":
        marks = {(len(said) - 1, 0): "5m"} | ({(SYSTEM, len(system) - 1): "5m"} if system else {})
    return compose(rules, model, system, said, marks)


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return total(known) if len(known) == len(amounts) else None
