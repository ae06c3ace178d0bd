"""Raw usage objects of the Messages API, of its streams, and of Bedrock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.anthropic.rules import AnthropicRules
from kvledger.providers.anthropic.usage import merged, read_usage
from kvledger.providers.catalogue import read_usage as read_by_name

CASES = Path(__file__).parents[4] / "shared" / "cases" / "usage-golden.json"

DOCUMENTED = {
    "input_tokens": 50,
    "cache_creation_input_tokens": 1000,
    "cache_read_input_tokens": 8000,
    "cache_creation": {"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 400},
    "output_tokens": 10,
    "output_tokens_details": {},
    "server_tool_use": {},
    "service_tier": "standard",
    "inference_geo": "us",
    "speed": "standard",
}


def plain(**fields: Any) -> dict[str, Any]:
    return {"input_tokens": 3, "output_tokens": 5, **fields}


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (DOCUMENTED, Usage(Split(9050, 8000, {"5m": 600, "1h": 400}, 50), 10, region="us")),
        (plain(), Usage(Split(3, 0, {}, 3), 5)),
        (plain(cache_creation_input_tokens=None, cache_read_input_tokens=None, cache_creation=None, service_tier=None,
               inference_geo=None, speed=None, output_tokens_details=None, server_tool_use=None, iterations=None),
         Usage(Split(3, 0, {}, 3), 5)),
        # Without a split by lifetime, a write costs what a 5 minute write costs.
        (plain(cache_creation_input_tokens=12304, cache_read_input_tokens=0),
         Usage(Split(12307, 0, {"5m": 12304}, 3), 5)),
        (plain(cache_creation={"ephemeral_1h_input_tokens": 7}), Usage(Split(10, 0, {"1h": 7}, 3), 5)),
        # The merge of a stream: more was written after message_start, by the API's own 5 minute marks.
        (plain(cache_creation_input_tokens=10, cache_creation={"ephemeral_1h_input_tokens": 7,
                                                               "ephemeral_5m_input_tokens": 0}),
         Usage(Split(13, 0, {"1h": 7, "5m": 3}, 3), 5)),
        (plain(cache_creation={"ephemeral_24h_input_tokens": 7}), Usage(Split(10, 0, {"24h": 7}, 3), 5)),
        (plain(output_tokens_details={"thinking_tokens": 4}), Usage(Split(3, 0, {}, 3), 5, 4)),
        (plain(service_tier="batch", speed="fast"), Usage(Split(3, 0, {}, 3), 5, service_tier="batch", speed="fast")),
        # Iterations of sampling are in the totals, those of a compaction are not.
        (plain(iterations=[
            {"type": "message", "input_tokens": 3, "output_tokens": 5},
            {"type": "compaction", "input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 900,
             "cache_creation_input_tokens": 30, "cache_creation": {"ephemeral_1h_input_tokens": 30}},
            {"type": "advisor_message", "input_tokens": 9, "output_tokens": 9, "model": "claude-opus-5"}]),
         Usage(Split(1033, 900, {"1h": 30}, 103), 25)),
        # Bedrock's Converse.
        ({"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}, Usage(Split(10, 0, {}, 10), 5)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 800, "cacheWriteInputTokens": 100},
         Usage(Split(910, 800, {"5m": 100}, 10), 5)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 0, "cacheWriteInputTokens": 100,
          "cacheDetails": [{"ttl": "1h", "inputTokens": 60}, {"ttl": "5m", "inputTokens": 40}]},
         Usage(Split(110, 0, {"1h": 60, "5m": 40}, 10), 5)),
        ({"inputTokens": 10, "outputTokens": 5, "cacheWriteInputTokens": None,
          "cacheDetails": [{"ttl": "1h", "inputTokens": 60}]}, Usage(Split(70, 0, {"1h": 60}, 10), 5)),
    ],
)  # fmt: skip
def test_usage_is_read(reported: dict[str, Any], usage: Usage) -> None:
    assert AnthropicRules().usage(reported) == usage
    assert read_by_name("bedrock", reported) == usage


@pytest.mark.parametrize(
    ("reported", "param"),
    [
        ({}, "input_tokens"),
        ({"input_tokens": 3}, "output_tokens"),
        ({"input_tokens": None, "output_tokens": 5}, "input_tokens"),
        (plain(input_tokens=True), "input_tokens"),
        (plain(cache_read_input_tokens=-1), "cache_read_input_tokens"),
        (plain(cache_read_input_tokens="12"), "cache_read_input_tokens"),
        (plain(cache_read_input_tokens=1.5), "cache_read_input_tokens"),
        (plain(cache_creation_input_tokens=1, cache_creation={"ephemeral_5m_input_tokens": 2}),
         "cache_creation_input_tokens"),
        (plain(cache_creation={"ephemeral_5m_input_tokens": -2}), "cache_creation.ephemeral_5m_input_tokens"),
        (plain(cache_creation=[5]), "cache_creation"),
        (plain(output_tokens_details={"thinking_tokens": 6}), "output_tokens_details.thinking_tokens"),
        (plain(iterations=[{"type": "compaction", "output_tokens": 1}]), "iterations[0].input_tokens"),
        (plain(iterations=7), "iterations"),
        ({"inputTokens": 3}, "outputTokens"),
        ({"inputTokens": 3, "outputTokens": 1, "cacheDetails": [{"inputTokens": 3}]}, "cacheDetails[0]"),
        ({"inputTokens": 3, "outputTokens": 1, "cacheWriteInputTokens": 1,
          "cacheDetails": [{"ttl": "5m", "inputTokens": 3}]}, "cacheWriteInputTokens"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_is_named(reported: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_usage(reported)
    assert refused.value.param == param
    assert param.rpartition("].")[2].rpartition(".")[2].partition("[")[0] in str(refused.value)


def test_a_stream_replaces_and_does_not_add() -> None:
    start = plain(output_tokens=1, cache_creation_input_tokens=100, cache_read_input_tokens=500,
                  cache_creation={"ephemeral_1h_input_tokens": 100, "ephemeral_5m_input_tokens": 0})  # fmt: skip
    delta = {"output_tokens": 50, "input_tokens": 3, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 500}
    more = {**delta, "output_tokens": 80, "cache_read_input_tokens": None}
    assert read_usage(merged([start, delta, more])) == Usage(Split(603, 500, {"1h": 100}, 3), 80)
    assert read_usage(merged([start, {"output_tokens": 9}])).output == 9


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_three_counts_are_disjoint(fresh: int, read: int, five: int, hour: int) -> None:
    split = read_usage(
        plain(
            input_tokens=fresh,
            cache_read_input_tokens=read,
            cache_creation_input_tokens=five + hour,
            cache_creation={"ephemeral_5m_input_tokens": five, "ephemeral_1h_input_tokens": hour},
        )
    ).split
    assert (split.fresh, split.read, split.written.get("5m", 0), split.written.get("1h", 0)) == (
        fresh,
        read,
        five,
        hour,
    )
    assert split.prompt_tokens == fresh + read + five + hour


def golden() -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, marks=pytest.mark.skip(reason="the golden cases are not on this machine"))]
    cases = json.loads(CASES.read_text())["cases"]
    return [pytest.param(case, id=case["id"]) for case in cases if case["provider"] == "anthropic"]


@pytest.mark.parametrize("case", golden())
def test_golden_cases(case: dict[str, Any]) -> None:
    records = case.get("records") or list(
        {line["message"]["id"]: line["message"] for line in case["lines"] if "usage" in line["message"]}.values()
    )
    usages = [read_usage(record["usage"]) for record in records]
    expected, splits = case["expected"], [usage.split for usage in usages]
    for key, found in {
        "prompt_tokens": sum(split.prompt_tokens for split in splits),
        "fresh_input_tokens": sum(split.fresh for split in splits),
        "cache_read_tokens": sum(split.read for split in splits),
        "cache_write_tokens": sum(split.written_tokens for split in splits),
        "cache_write_5m_tokens": sum(split.written.get("5m", 0) for split in splits),
        "cache_write_1h_tokens": sum(split.written.get("1h", 0) for split in splits),
        "output_tokens": sum(usage.output for usage in usages),
    }.items():
        assert found == expected.get(key, found), key
    for split, each in zip(splits, expected.get("per_record", ()), strict=False):
        assert split.prompt_tokens == each["prompt_tokens"]
