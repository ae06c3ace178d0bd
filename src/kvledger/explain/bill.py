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
from kvledger.providers.catalogue import rulebook, split_name
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import TokenCounter
from kvledger.text.tokenizer import Tokenizer

MODELS = (
    "gemini:gemini-3.5-flash",
    "deepseek:deepseek-v4-flash",
    "kimi:kimi-k3",
    "qwen:qwen-plus",
)
"""One model of each provider whose rulebook differs from the others'."""

_MARK = {"type": "ephemeral"}


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
    """The request in the provider's own shape."""
    system = [message["content"] for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    match rules:
        case "anthropic":
            said: list[dict[str, Any]] = [{"role": each["role"], "content": each["content"]} for each in others]
            said[-1]["content"] = [{"type": "text", "text": said[-1]["content"], "cache_control": _MARK}]
            blocks = [{"type": "text", "text": text} for text in system]
            marked = {"system": [*blocks[:-1], {**blocks[-1], "cache_control": _MARK}]} if blocks else {}
            return {"model": model, "max_tokens": 1024, **marked, "messages": said}
        case "gemini":
            roles = {"assistant": "model"}
            contents = [
                {"role": roles.get(each["role"], each["role"]), "parts": [{"text": each["content"]}]} for each in others
            ]
            instruction = {"systemInstruction": {"parts": [{"text": text} for text in system]}} if system else {}
            return {"model": model, **instruction, "contents": contents}
    return {"model": model, "messages": [dict(each) for each in messages]}


def _sum(amounts: Sequence[Decimal | None]) -> Decimal | None:
    known = [amount for amount in amounts if amount is not None]
    return total(known) if len(known) == len(amounts) else None
