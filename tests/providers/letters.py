"""What the tests of the automatic rulebooks share: a token is a letter, and requests come one after another."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from kvledger.ledger.account import Account
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.history import History
from kvledger.providers.rulebook import Rulebook

NOON = datetime(2026, 11, 12, 12, tzinfo=UTC).timestamp()


class Letters:
    def count(self, text: str) -> int:
        return len(text)


def chat(model: str, *texts: str, **fields: Any) -> dict[str, Any]:
    """A chat of a system text and then user and assistant texts in turn."""
    roles = ["system", *("user" if turn % 2 == 0 else "assistant" for turn in range(len(texts) - 1))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return {"model": model, "messages": messages, **fields}


class World:
    """A provider's cache with its clock: `ask` judges a body, and what it writes is there for the next.

    `begins` is after how many seconds the response begins and makes its entries readable.
    """

    def __init__(self, rules: Rulebook, *, at: float = NOON, begins: float = 0.0) -> None:
        self.rules, self.at, self.begins = rules, at, begins
        self.entries, self.history = MemoryEntries(), History()

    def ask(self, body: dict[str, Any], *, after: float = 60.0, scope: str = "s", api: str = "") -> Account:
        self.at += after
        prompt = self.rules.prompt(body, scope=scope, counter=Letters(), api=api)
        verdict = self.rules.judge(prompt, self.entries, self.at, earlier=self.history.nearest(prompt))
        self.history.add(prompt)
        self.entries.put(verdict.renewed)
        self.entries.put(replace(entry, readable_at=self.at + self.begins) for entry in verdict.written)
        return verdict.account


def reasons(account: Account) -> list[str]:
    return [found.reason.value for found in account.breaks]
