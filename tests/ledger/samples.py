"""Usages and receipts for the tests of this room."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kvledger.ledger.account import Account, Break, BreakReason, Split, Usage
from kvledger.ledger.prices import Prices
from kvledger.ledger.receipt import Receipt

PRICES = Prices()


def at(text: str) -> float:
    """Seconds since the epoch of an ISO time, UTC unless it says otherwise."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def used(
    fresh: int = 0, output: int = 0, *, read: int = 0, written: dict[str, int] | None = None, **more: Any
) -> Usage:
    """A usage by its parts, as price tables state them."""
    written = written or {}
    split = Split(read + sum(written.values()) + fresh, read, written, fresh)
    return Usage(split, output, **more)


def receipt(id: str = "req_1", **changes: Any) -> Receipt:
    """A receipt of a finished request, with what a test wants to be different."""
    usage = changes.pop("usage", used(37, 820, read=21_400, written={"5m": 1_500, "1h": 4_500}))
    began = changes.pop("at", at("2026-11-12T09:00"))
    values: dict[str, Any] = {
        "id": id,
        "at": began,
        "provider": "anthropic",
        "api": "messages",
        "model": "claude-sonnet-5-5",
        "answered_by": "smollm2",
        "account": Account(usage.split, (Break(BreakReason.EXPIRED, 6_000, path="system[0]"),), rule="2026-10-07"),
        "usage": usage,
        "reused_tokens": min(16, max(usage.split.prompt_tokens - 1, 0)),
        "queued": 0.25,
        "prefill": 1.5,
        "decode": 4.0,
        "ttft": 1.75,
        "finish_reason": "stop",
        "bill": PRICES.bill("anthropic", "claude-sonnet-5-5", usage, began),
        "tenant": "acme",
        "key": "ci",
        "miss": "cold",
        "kv_byte_seconds": 2_000_000.0,
        "kv_pool_bytes": 1_000_000_000,
    }
    return Receipt(**(values | changes))
