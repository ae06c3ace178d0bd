"""The golden money cases that lie beside the project: every amount to the last digit, no wrong answer anywhere."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvledger.ledger.account import Usage
from kvledger.ledger.bill import Bill
from kvledger.ledger.money import total
from kvledger.providers.catalogue import read_usage
from tests.ledger.samples import PRICES, at

FILE = Path(__file__).parents[3] / "shared" / "cases" / "usage-golden.json"

CASES: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))["cases"] if FILE.exists() else []
pytestmark = pytest.mark.skipif(not CASES, reason="the golden cases are not beside this checkout")


def records(case: dict[str, Any]) -> list[dict[str, Any]]:
    if "records" in case:
        return list(case["records"])
    # A transcript: the last line of each message counts.
    messages = {line["message"]["id"]: line for line in case["lines"] if line["type"] == "assistant"}
    return [{"ts": line["timestamp"], "usage": line["message"]["usage"]} for line in messages.values()]


def read(case: dict[str, Any], record: dict[str, Any]) -> Usage:
    raw = record.get("usage") or record["usageMetadata"]
    return read_usage(case["provider"], raw, api=record.get("api", ""))


def bills(case: dict[str, Any]) -> list[Bill]:
    return [
        PRICES.bill(case["provider"], case["model"], read(case, record), at(record["ts"].replace("Z", "+00:00")))
        for record in records(case)
    ]


def known(bill: Bill) -> Decimal:
    assert bill.total is not None, bill.unknown
    return bill.total


NAMES = {"fresh_input": "input ", "cache_read": "cache_read ", "output": "output "}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_costs_to_the_last_digit(case):
    found = bills(case)
    expected = case["expected"]
    assert total([known(bill) for bill in found]) == Decimal(expected["total_cost"])
    for bill, one in zip(found, expected.get("per_record", []), strict=False):
        assert known(bill) == Decimal(one.get("cost") if isinstance(one.get("cost"), str) else one["total_cost"])
    lines: dict[str, Decimal] = {}
    for bill in found:
        for line in bill.lines:
            assert line.usd is not None
            name = f"{line.kind.value} {line.ttl}"
            lines[name] = total([lines.get(name, Decimal(0)), line.usd])
    for name, amount in expected.get("cost", {}).items():
        if name.startswith("output_"):
            continue  # the parts of the output are one line
        key = NAMES.get(name) or name.replace("cache_write_", "cache_write ")
        assert lines.get(key, Decimal(0)) == Decimal(amount), name
    if "output_visible" in expected.get("cost", {}):
        parts = expected["cost"]
        assert lines["output "] == Decimal(parts["output_visible"]) + Decimal(parts["output_thoughts"])
    if "same_usage_dated" in case:
        dated = PRICES.bill(
            case["provider"], case["model"], read(case, case["records"][0]), at(case["same_usage_dated"])
        )
        assert known(dated) == Decimal(case["expected_for_that_date"]["total_cost"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_token_counts(case):
    splits = [read(case, record).split for record in records(case)]
    expected = case["expected"]
    sums = {
        "prompt_tokens": sum(split.prompt_tokens for split in splits),
        "fresh_input_tokens": sum(split.fresh for split in splits),
        "cache_read_tokens": sum(split.read for split in splits),
        "cache_write_tokens": sum(split.written_tokens for split in splits),
        **{
            f"cache_write_{ttl}_tokens": sum(split.written.get(ttl, 0) for split in splits)
            for ttl in ("5m", "1h", "30m", "12h")
        },
    }
    checked = {name: value for name, value in expected.items() if name in sums}
    assert {name: sums[name] for name in checked} == checked


def test_the_same_traffic_without_caching():
    case = next(case for case in CASES if case["id"] == "anthropic-three-rows")
    without = [
        PRICES.statement(case["provider"], case["model"], read(case, one), at(one["ts"])).uncached
        for one in case["records"]
    ]
    assert total([known(bill) for bill in without]) == Decimal(case["expected"]["same_traffic_without_caching"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_no_wrong_answer_appears(case):
    found = bills(case)
    amounts = {known(bill) for bill in found} | {total([known(bill) for bill in found])}
    for wrong in case["wrong_answers"]:
        for name, value in wrong.items():
            if name in ("total_cost", "first_record", "second_record"):
                assert Decimal(re.findall(r"[\d.]+", value)[0]) not in amounts, wrong["cause"]
