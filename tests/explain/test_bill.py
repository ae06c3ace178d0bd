"""A conversation at providers, by their own rules."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.explain.bill import MODELS, bill_conversation
from kvledger.explain.chat import Turn
from tests.providers.letters import NOON, Letters


def turn(at: float, *texts: str, answer: int = 100) -> Turn:
    roles = ["system", *("user" if i % 2 == 0 else "assistant" for i in range(len(texts) - 1))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
    return Turn(messages, at, 0, 0, answer, 0, None, None)


TURNS = (turn(0, "s" * 6400, "u" * 640), turn(60, "s" * 6400, "u" * 640, "a" * 100, "v" * 540))


def test_deepseek_by_hand():
    """7040 tokens fresh at first, then 7040 read and 640 fresh, at the rates of the prices' own record."""
    bill = bill_conversation("deepseek:deepseek-v4-flash", TURNS, Letters(), at=NOON)
    assert [(each.split.read, each.split.fresh) for each in bill.accounts] == [(0, 7040), (7040, 640)]
    lines = [line for statement in bill.statements for line in statement.cost.lines]
    assert sum((line.tokens * line.rate for line in lines), Decimal(0)) / 1_000_000 == bill.cost
    assert bill.cost < bill.uncached


@pytest.mark.parametrize("name", ["gemini:gemini-2.5-flash", "kimi:kimi-k3", "qwen:qwen-plus", "groq:gpt-oss-120b"])
def test_each_provider_takes_its_own_body_and_reads_the_first_turn_in_the_second(name):
    bill = bill_conversation(name, TURNS, Letters(), at=NOON)
    first, second = (each.split for each in bill.accounts)
    assert first.read == 0
    assert second.read > 6000
    assert (first.prompt_tokens, second.prompt_tokens) == (7040, 7680)


@pytest.mark.parametrize("name", MODELS)
def test_the_default_models_have_rules_and_prices(name):
    bill = bill_conversation(name, TURNS, Letters(), at=NOON)
    assert bill.cost is not None
    assert bill.unknown == ()
    assert bill.cost <= bill.uncached


def test_a_provider_that_is_not_known():
    with pytest.raises(InvalidRequestError):
        bill_conversation("deepseek:", TURNS, Letters(), at=NOON)
