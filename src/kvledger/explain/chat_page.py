"""A conversation as JSON and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from kvledger.cache.miss import MissReason
from kvledger.explain.bill import ProviderBill
from kvledger.explain.chat import Turn
from kvledger.ledger.account import Account
from kvledger.ledger.bill import Statement
from kvledger.page.blocks import Block, Heading, LineChart, Page, Paragraph, Series, Table


def chat_record(turns: Sequence[Turn], bills: Sequence[ProviderBill] = ()) -> dict[str, Any]:
    """A conversation as plain values: counts of tokens, and bills in US dollars, as strings."""
    return {
        "turns": [
            {
                "turn": i + 1,
                "at": turn.at,
                "prompt_tokens": turn.prompt,
                "read_tokens": turn.reused,
                "fresh_tokens": turn.fresh,
                "answer_tokens": turn.answer,
                "written_tokens": turn.written,
                "miss": None if turn.reason is None else {"reason": turn.reason.value, "path": turn.path},
            }
            for i, turn in enumerate(turns)
        ],
        "total": {
            "prompt_tokens": sum(turn.prompt for turn in turns),
            "read_tokens": sum(turn.reused for turn in turns),
            "fresh_tokens": sum(turn.fresh for turn in turns),
            "answer_tokens": sum(turn.answer for turn in turns),
        },
        "bills": [
            {
                "provider": bill.provider,
                "model": bill.model,
                "turns": [_billed(*pair) for pair in zip(bill.accounts, bill.statements, strict=True)],
                "usd": _amount(bill.cost),
                "usd_without_cache": _amount(bill.uncached),
                "unknown": list(bill.unknown),
            }
            for bill in bills
        ],
    }


def chat_page(turns: Sequence[Turn], model_name: str, bills: Sequence[ProviderBill] = ()) -> Page:
    """A conversation for a person."""
    prompt, fresh = sum(turn.prompt for turn in turns), sum(turn.fresh for turn in turns)
    rows = [
        (
            str(i + 1),
            f"{turn.at:g} s",
            f"{turn.prompt:,}",
            f"{turn.reused:,}",
            f"{turn.fresh:,}",
            f"{turn.answer:,}",
            f"{turn.written:,}",
            _why(turn),
        )
        for i, turn in enumerate(turns)
    ]
    columns = ("turn", "at", "prompt", "read", "fresh", "answer", "written", "first token not read")
    blocks: list[Block] = [
        Paragraph(
            f"{len(turns)} requests to {model_name}. Each sends the whole conversation again; what the cache has of it"
            " is read, the rest is computed, and both the rest and the answer are written."
        ),
        Heading("Turn by turn, in tokens"),
        Table(columns, rows, numeric=range(7)),
        Paragraph(
            f"{prompt:,} tokens were sent and {fresh:,} computed: {1 - fresh / prompt:.1%} were read from the cache. An"
            " answer costs no second look in the next turn: it is continued with the very tokens that were sampled."
        ),
    ]
    if len(turns) > 1:
        numbers = [float(i + 1) for i in range(len(turns))]
        sent, computed = 0, 0
        lines: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
        for number, turn in zip(numbers, turns, strict=True):
            sent, computed = sent + turn.prompt, computed + turn.fresh
            lines[0].append((number, float(sent)))
            lines[1].append((number, float(computed)))
        chart = LineChart(
            "Prompt tokens so far: sent, and computed",
            "turn",
            "tokens",
            [Series("sent", lines[0]), Series("computed", lines[1])],
        )
        blocks.append(chart)
    if bills:
        blocks += _bills(bills)
    return Page("A conversation and the prompt cache", blocks)


def _bills(bills: Sequence[ProviderBill]) -> list[Block]:
    rows = []
    for bill in bills:
        splits = [account.split for account in bill.accounts]
        reasons = [found.reason.value for account in bill.accounts[1:] for found in account.breaks]
        rows.append(
            (
                bill.model,
                f"{sum(split.read for split in splits):,}",
                f"{sum(split.written_tokens for split in splits):,}",
                f"{sum(split.fresh for split in splits):,}",
                _amount(bill.cost) or "unknown",
                _amount(bill.uncached) or "unknown",
                ", ".join(dict.fromkeys(reasons)).replace("_", " ") or "-",
            )
        )
    columns = ("model", "read", "written", "fresh", "USD", "uncached", "breaks")
    unknown = [f"{bill.provider}:{bill.model}: {reason}." for bill in bills for reason in bill.unknown]
    return [
        Heading("The same conversation at providers"),
        Table(columns, rows, numeric=range(1, 6)),
        Paragraph(
            "\n".join(
                (
                    "By each provider's own rules, which have minimum sizes, steps and lifetimes of their own, and"
                    " today's prices. Tokens are counted by the local model's tokenizer; a provider's differ somewhat.",
                    *unknown,
                )
            )
        ),
    ]


def _billed(account: Account, statement: Statement) -> dict[str, Any]:
    return {
        "read_tokens": account.split.read,
        "written_tokens": dict(account.split.written),
        "fresh_tokens": account.split.fresh,
        "breaks": [
            {"reason": found.reason.value, "tokens": found.tokens, "path": found.path} for found in account.breaks
        ],
        "rule": account.rule,
        "certain": account.certain,
        "usd": _amount(statement.cost.total),
        "usd_without_cache": _amount(statement.uncached.total),
    }


def _amount(usd: Decimal | None) -> str | None:
    return None if usd is None else format(usd, "f")


def _why(turn: Turn) -> str:
    if turn.reason is None:
        return "the last, always computed"
    where = f" ({turn.path})" if turn.path else ""
    if turn.reason is MissReason.COLD_START and turn.reused:
        return f"new text{where}"
    return f"{turn.reason.value.replace('_', ' ')}{where}"
