"""The figures of an audit, and logs that lack something."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvledger.audit.audit import Policies
from kvledger.audit.findings import Code
from kvledger.audit.record import Record, Source, Unread
from kvledger.audit.report.json import audit_object
from kvledger.ledger.account import Split, Usage
from kvledger.providers.catalogue import read_usage
from tests.audit.logs import DIALECTS, SYSTEM, audited, body, codes, records, reported, turns
from tests.ledger.samples import at

FILE = Path(__file__).parents[3] / "shared" / "cases" / "usage-golden.json"
CASES: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))["cases"] if FILE.exists() else []


def chat(dialect, count=9):
    said = turns(count)
    return [body(dialect, SYSTEM, said[:number]) for number in range(1, count + 1, 2)]


@pytest.mark.skipif(not CASES, reason="the golden cases are not beside this checkout")
@pytest.mark.parametrize("case", [case for case in CASES if "records" in case], ids=lambda case: case["id"])
def test_golden_costs_to_the_last_digit(case):
    log = []
    for number, row in enumerate(case["records"]):
        raw = row.get("usage") or row["usageMetadata"]
        usage = read_usage(case["provider"], raw, api=row.get("api", ""))
        when = at(row["ts"].replace("Z", "+00:00"))
        log.append(Record(Source("golden", number + 1), case["provider"], "", case["model"], at=when, usage=usage))
    result = audited(log)
    assert result.observed.cost == Decimal(case["expected"]["total_cost"])
    for name, found in (
        ("prompt_tokens", result.observed.prompt_tokens),
        ("cache_read_tokens", result.observed.read),
        ("fresh_input_tokens", result.observed.fresh),
    ):
        if name in case["expected"]:
            assert found == case["expected"][name]
    if "same_traffic_without_caching" in case["expected"]:
        assert result.uncached == Decimal(case["expected"]["same_traffic_without_caching"])


def test_sums_by_hand():
    log = reported(records("anthropic", chat("anthropic", 3)))
    result = audited(log)
    # 6000 + 300 tokens written, then those read and 600 written; two outputs of 100; 3, 3.75, 0.30 and 15 a million.
    assert result.observed.prompt_tokens == 6300 + 6900
    assert result.observed.read == 6300
    assert result.observed.written == {"5m": 6900}
    cost = (6900 * Decimal("3.75") + 6300 * Decimal("0.3") + 200 * 15) / 1_000_000
    assert result.observed.cost == cost
    assert result.uncached == (13200 * 3 + 200 * Decimal(15)) / 1_000_000
    assert result.seconds == 30
    assert result.observed.hit_rate == 6300 / 13200
    assert result.residuals == {"none: as the rules say": 2}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_records_in_any_order_of_lines(dialect):
    log = reported(records(dialect, chat(dialect)))
    straight, turned = audited(log), audited(log[::-1])
    assert codes(turned) == []
    assert turned.rules == straight.rules
    assert turned.groups["hour"] == straight.groups["hour"]


def test_no_times_at_all():
    result = audited([replace(each, at=None) for each in reported(records("openai-steps", chat("openai-steps")))])
    assert codes(result) == []
    assert result.seconds == 0
    assert result.groups["hour"] == {}


def test_absurd_times_are_no_times():
    log = reported(records("openai-steps", chat("openai-steps")))
    result = audited([replace(log[0], at=float("nan")), replace(log[1], at=-5.0), replace(log[2], at=1e300), *log[3:]])
    assert result.requests == 5


def test_bodies_without_usage():
    result = audited(records("anthropic", chat("anthropic")))
    assert result.observed.requests == 0
    assert result.observed.hit_rate is None
    assert result.rules.requests == 5
    assert result.residuals == {"missing field: the log has no usage": 5}


def test_usage_without_bodies():
    log = [replace(each, body=None) for each in reported(records("anthropic", chat("anthropic")))]
    result = audited(log)
    assert result.rules.requests == 0
    assert result.observed.requests == 5
    assert codes(result) == []
    assert result.residuals == {"the log has no request body": 5}


def test_what_cannot_be_read_is_passed_on():
    unread = Unread(Source("log.jsonl", 7), "not JSON")
    bad = replace(records("anthropic", chat("anthropic", 1))[0], provider="antropic")
    result = audited([unread, bad])
    assert result.unread[0] == unread
    assert "anthropic" in result.unread[1].reason
    assert result.requests == 0


def test_a_model_that_nobody_knows():
    log = reported(records("anthropic", chat("anthropic")))
    log = [replace(each, model="claude-nonesuch-9", body={**each.body, "model": "claude-nonesuch-9"}) for each in log]
    result = audited(log)
    assert result.rules.requests == 0
    assert sum(result.observed.unpriced.values()) == 5
    assert result.observed.cost == 0


def test_responses_that_continue_one_another():
    said, log = turns(7), []
    whole = reported(records("openai-responses", chat("openai-responses", 7)))
    for number, each in enumerate(whole):
        sent = {"model": each.model, "instructions": SYSTEM, "input": said[2 * number]}
        if number:
            sent["previous_response_id"] = f"r{number - 1}"
        output = [{"role": "assistant", "content": said[2 * number + 1]}] if number < 3 else None
        log.append(replace(each, body=sent, output=output))
    result = audited(log)
    assert codes(result) == []
    assert result.rules == result.observed
    orphan = audited(log[1:])
    assert orphan.residuals["the response that it continues is not in the log"] == 3


def test_tokens_are_scaled_to_the_providers_own():
    log = reported(records("anthropic", chat("anthropic", 3)))
    scaled = []
    for each in log:
        split = each.usage.split
        more = Split(split.prompt_tokens * 5 // 4, split.read * 5 // 4, {"5m": 0}, 0 + split.written_tokens * 5 // 4)
        scaled.append(replace(each, usage=Usage(more, 100)))
    result = audited(scaled)
    assert result.rules.prompt_tokens == result.observed.prompt_tokens
    assert abs(result.rules.read - result.observed.read) <= 2


def test_what_if():
    log = reported(records("anthropic", chat("anthropic"), [400.0 * number for number in range(5)]))
    policies = Policies(
        elsewhere=("openai:gpt-5.2", "anthropic:claude-haiku-4-5", "nobody:nothing"),
        routed=(1.0, "anthropic:claude-haiku-4-5"),
        compacted=(7000, 6500),
        machine=Decimal("3.6"),
    )
    result = audited(log, what_if=True, policies=policies)
    found = {each.name: each for each in result.what_if}
    assert found["longer-lifetime"].cost < result.rules.cost
    assert found["longer-lifetime"].hit_rate > 0.5
    assert found["static-first"].cost == found["tool-order"].cost == result.rules.cost
    assert found["batch"].cost == result.rules.cost / 2
    assert found["model openai:gpt-5.2"].low < found["model openai:gpt-5.2"].cost < found["model openai:gpt-5.2"].high
    assert found["route 100% to anthropic:claude-haiku-4-5"].cost < result.rules.cost
    assert "nobody" in found["model nobody:nothing"].unknown
    assert found["self-hosting"].cost == Decimal("1.6")
    assert found["compaction"].cost is not None
    assert result.best == found["best-marks"].cost
    assert result.best <= result.rules.cost


def counters(number, split, seconds):
    provider, api, model = DIALECTS["anthropic"]
    usage = Usage(split, output=100)
    return Record(Source("rows", number + 1), provider, api, model, at=1_795_000_000.0 + number * seconds, usage=usage)


def test_what_cannot_be_replayed_has_no_price():
    log = [counters(number, Split(12_000, 12_000), 30) for number in range(3)]
    result = audited(log, what_if=True)
    assert result.best is None
    assert result.what_if
    assert {(each.cost, each.hit_rate) for each in result.what_if} == {(None, None)}
    shown = audit_object(result)
    assert shown["best_cost_usd"] is None
    assert {each["cost_usd"] for each in shown["what_if"]} == {None}
    assert shown["estimated"] == {"requests": 0, "error_band": None}


def test_estimated_tokens_carry_their_error_band():
    log = records("anthropic", chat("anthropic", 5))
    log = [*reported(log)[:1], *log[1:]]
    assert audit_object(audited(log))["estimated"] == {"requests": 2, "error_band": 0.25}


def test_caching_that_costs_more_than_it_saves():
    # Each pays 10,000 x 3.75 + 2,000 x 0.30 = 38,100 where 12,000 x 3 = 36,000 would do; the fee is 0.75 a million.
    log = [counters(number, Split(12_000, 2_000, {"5m": 10_000}, 0), 400) for number in range(12)]
    (found,) = audited(log).findings
    assert found.code is Code.NOT_WORTH_CACHING
    assert found.requests == 12
    assert found.cost == Decimal("0.09")


def test_caching_that_just_pays():
    # 10,000 x 3.75 + 3,000 x 0.30 = 38,400 beside 13,000 x 3 = 39,000.
    log = [counters(number, Split(13_000, 3_000, {"5m": 10_000}, 0), 400) for number in range(12)]
    assert codes(audited(log)) == []
