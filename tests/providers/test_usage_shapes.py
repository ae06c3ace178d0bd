"""Raw usage objects of the providers that speak OpenAI's language with an accent, and of Gemini."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.catalogue import read_usage
from kvledger.providers.gemini.usage import usage_metadata

CASES = Path(__file__).parents[3] / "shared" / "cases" / "usage-golden.json"


def chat(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050, **details}


def cached(**details: Any) -> dict[str, Any]:
    return chat(prompt_tokens_details=details)


@pytest.mark.parametrize(
    ("provider", "reported", "usage"),
    [
        ("groq", cached(cached_tokens=256), Usage(Split(1000, 256, {}, 744), 50)),
        ("groq", chat(), Usage(Split(1000, 0, {}, 1000), 50)),
        ("groq", chat(prompt_tokens_details=None), Usage(Split(1000, 0, {}, 1000), 50)),
        ("groq", {**cached(cached_tokens=256), "service_tier": "flex"},
         Usage(Split(1000, 256, {}, 744), 50, service_tier="flex")),
        ("mistral", cached(cached_tokens=64), Usage(Split(1000, 64, {}, 936), 50)),
        ("zai", cached(cached_tokens=500), Usage(Split(1000, 500, {}, 500), 50)),
        ("fireworks", cached(cached_tokens=1000), Usage(Split(1000, 1000, {}, 0), 50)),
        # xAI counts reasoning beside the completion, as its total shows; others within.
        ("xai", {"prompt_tokens": 32, "completion_tokens": 9, "total_tokens": 135,
                 "completion_tokens_details": {"reasoning_tokens": 94}, "prompt_tokens_details": {"cached_tokens": 8}},
         Usage(Split(32, 8, {}, 24), 103, 94)),
        ("xai", {"input_tokens": 1000, "input_tokens_details": {"cached_tokens": 300}, "output_tokens": 50,
                 "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 1050},
         Usage(Split(1000, 300, {}, 700), 50, 20)),
        ("deepseek", chat(prompt_cache_hit_tokens=600, prompt_cache_miss_tokens=400),
         Usage(Split(1000, 600, {}, 400), 50)),
        ("deepseek", {"prompt_cache_hit_tokens": 600, "prompt_cache_miss_tokens": 400, "completion_tokens": 5},
         Usage(Split(1000, 600, {}, 400), 5)),
        ("deepseek", cached(cached_tokens=600), Usage(Split(1000, 600, {}, 400), 50)),
        ("kimi", chat(cached_tokens=700), Usage(Split(1000, 700, {}, 300), 50)),
        ("kimi", cached(cached_tokens=700, cache_write_tokens=200), Usage(Split(1000, 700, {"5m": 200}, 100), 50)),
        ("kimi", {**cached(cached_tokens=700, cache_write_tokens=300), "Msh-Usage-Cache-Write-Tokens-5m": "100",
                  "Msh-Usage-Cache-Write-Tokens-1h": "200"},
         Usage(Split(1000, 700, {"5m": 100, "1h": 200}, 0), 50)),
        ("qwen", cached(cached_tokens=100, cache_creation_input_tokens=800, cache_type="ephemeral",
                        cache_creation={"ephemeral_5m_input_tokens": 800}),
         Usage(Split(1000, 100, {"5m": 800}, 100), 50, cache_mode="explicit")),
        ("qwen", cached(cached_tokens=100), Usage(Split(1000, 100, {}, 900), 50, cache_mode="implicit")),
        ("dashscope", {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050,
                       "prompt_tokens_details": {"cached_tokens": 250}},
         Usage(Split(1000, 250, {}, 750), 50, cache_mode="implicit")),
        ("gemini", {"promptTokenCount": 1000, "candidatesTokenCount": 50, "totalTokenCount": 1050},
         Usage(Split(1000, 0, {}, 1000), 50)),
        ("gemini", {"usage_metadata": {"prompt_token_count": 1000, "cached_content_token_count": 400,
                                       "candidates_token_count": 50, "thoughts_token_count": 30,
                                       "tool_use_prompt_token_count": 20, "traffic_type": "ON_DEMAND_PRIORITY"}},
         Usage(Split(1020, 400, {}, 620), 80, 30, service_tier="priority")),
        ("gemini", {"promptTokenCount": 7, "totalTokenCount": 7}, Usage(Split(7, 0, {}, 7))),
        ("gemini", {"total_input_tokens": 1000, "total_cached_tokens": 900, "total_output_tokens": 10,
                    "total_thought_tokens": 5, "total_tool_use_tokens": 0, "total_tokens": 1015},
         Usage(Split(1000, 900, {}, 100), 15, 5)),
    ],
)  # fmt: skip
def test_shapes(provider, reported, usage):
    assert read_usage(provider, reported) == usage


@pytest.mark.parametrize(
    ("provider", "reported", "param"),
    [
        ("groq", {}, "prompt_tokens"),
        ("groq", {"prompt_tokens": 1}, "completion_tokens"),
        ("groq", cached(cached_tokens=1001), "prompt_tokens_details.cached_tokens"),
        ("groq", cached(cached_tokens=-1), "prompt_tokens_details.cached_tokens"),
        ("groq", cached(cached_tokens=True), "prompt_tokens_details.cached_tokens"),
        ("groq", cached(cached_tokens=1.0), "prompt_tokens_details.cached_tokens"),
        ("groq", chat(prompt_tokens_details=5), "prompt_tokens_details"),
        ("groq", chat(completion_tokens_details={"reasoning_tokens": 51}),
         "completion_tokens_details.reasoning_tokens"),
        ("deepseek", chat(prompt_cache_hit_tokens=600, prompt_cache_miss_tokens=401), "prompt_cache_miss_tokens"),
        ("deepseek", {**cached(cached_tokens=5), "prompt_cache_hit_tokens": 6}, "prompt_tokens_details.cached_tokens"),
        ("kimi", {**cached(cache_write_tokens=9), "msh-usage-cache-write-tokens-1h": 8},
         "prompt_tokens_details.cache_write_tokens"),
        ("kimi", chat(**{"msh-usage-cache-write-tokens-1h": "many"}), "msh-usage-cache-write-tokens-1h"),
        ("qwen", cached(cache_creation_input_tokens=9, cache_creation={"ephemeral_5m_input_tokens": 8}),
         "prompt_tokens_details.cache_creation.ephemeral_5m_input_tokens"),
        ("gemini", {"promptTokenCount": 5, "cachedContentTokenCount": 6}, "cachedContentTokenCount"),
        ("gemini", {"promptTokenCount": 5, "totalTokenCount": 4}, "totalTokenCount"),
        ("gemini", {"promptTokenCount": "5"}, "promptTokenCount"),
        ("gemini", {"candidatesTokenCount": 5}, "promptTokenCount"),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused_by_name(provider, reported, param):
    with pytest.raises(InvalidRequestError) as caught:
        read_usage(provider, reported)
    assert caught.value.param == param


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 10**6))
def test_what_gemini_writes_it_reads(read, fresh, visible, thoughts):
    usage = Usage(Split(read + fresh, read, {}, fresh), visible + thoughts, thoughts)
    told = usage_metadata(usage)
    assert read_usage("gemini", told) == usage
    assert ("cachedContentTokenCount" in told) == (read > 0)
    assert told["totalTokenCount"] == read + fresh + visible + thoughts


def golden(*providers: str) -> list[Any]:
    if not CASES.exists():
        return [pytest.param(None, None, marks=pytest.mark.skip(reason=f"{CASES} is not on this machine"))]
    cases = [case for case in json.loads(CASES.read_text())["cases"] if case["provider"] in providers]
    return [pytest.param(case, record, id=case["id"]) for case in cases for record in case["records"]]


@pytest.mark.parametrize(("case", "record"), golden("google", "deepseek", "qwen", "moonshot", "groq", "xai", "zai"))
def test_golden_counts(case, record):
    expected = case["expected"]
    usage = read_usage(case["provider"], record.get("usage") or record["usageMetadata"])
    each = "_each" if "prompt_tokens_each" in expected else ""
    assert usage.split.prompt_tokens == expected["prompt_tokens" + each]
    assert usage.split.read == expected["cache_read_tokens" + each]
    assert usage.split.fresh == expected["fresh_input_tokens" + each]
    assert usage.split.written == {}
    if "billable_output_tokens" in expected:
        assert (usage.output, usage.reasoning) == (
            expected["billable_output_tokens"],
            expected["output_thoughts_tokens"],
        )
