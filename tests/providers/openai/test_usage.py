"""Raw usage objects of all three shapes, and public bugs in reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.openai.rules import OpenAIRules
from kvledger.providers.openai.usage import read_usage

CASES = Path(__file__).parents[4] / "shared" / "cases" / "usage-golden.json"


def chat(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens": 2006, "completion_tokens": 300, "total_tokens": 2306, "prompt_tokens_details": details}


def responses(**details: Any) -> dict[str, Any]:
    return {
        "input_tokens": 15000,
        "input_tokens_details": details,
        "output_tokens": 300,
        "output_tokens_details": {"reasoning_tokens": 120},
        "total_tokens": 15300,
    }


def by_ttl(short: int, long: int) -> dict[str, int]:
    return {"ttl_30m_tokens": short, "ttl_12h_tokens": long}


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        (chat(cached_tokens=1920), Usage(Split(2006, 1920, {}, 86), 300)),  # BerriAI/litellm#6215
        (chat(cached_tokens=1024, cache_write_tokens=900), Usage(Split(2006, 1024, {"30m": 900}, 82), 300)),
        (chat(), Usage(Split(2006, 0, {}, 2006), 300)),
        (responses(cached_tokens=5000, cache_write_tokens=6000, cache_write_tokens_details=by_ttl(2000, 4000)),
         Usage(Split(15000, 5000, {"30m": 2000, "12h": 4000}, 4000), 300, 120)),
        (responses(cached_tokens=0, cache_write_tokens=0, cache_write_tokens_details=None),
         Usage(Split(15000, 0, {}, 15000), 300, 120)),
        ({"input_tokens": 100, "output_tokens": 20, "total_tokens": 120, "output_token_details": {"audio_tokens": 0},
          "input_token_details": {"text_tokens": 80, "audio_tokens": 20, "cached_tokens": 64,
                                  "cached_tokens_details": {"text_tokens": 64, "audio_tokens": 0}}},
         Usage(Split(100, 64, {}, 36), 20)),
        ({"prompt_tokens": 8, "total_tokens": 8}, Usage(Split(8, 0, {}, 8))),  # embeddings
        ({**chat(), "service_tier": "fast"}, Usage(Split(2006, 0, {}, 2006), 300, service_tier="priority")),
        ({**chat(), "service_tier": "default"}, Usage(Split(2006, 0, {}, 2006), 300)),
        ({**chat(), "service_tier": "flex"}, Usage(Split(2006, 0, {}, 2006), 300, service_tier="flex")),
    ],
)  # fmt: skip
def test_shapes(reported, usage):
    assert read_usage(reported) == usage
    assert OpenAIRules().usage(reported) == usage


def test_p25_null_is_zero():
    """sglang#28801: zero hits are reported as null."""
    nothing = chat(cached_tokens=None, cache_write_tokens=None)
    assert read_usage(nothing).split == Split(2006, 0, {}, 2006)
    assert read_usage({**nothing, "prompt_tokens_details": None, "completion_tokens_details": None}).split.read == 0


@pytest.mark.parametrize("cached", [0, 1, 1920, 2006])
def test_p28_cached_tokens_are_part_of_the_prompt(cached):
    """openinference#3016, langfuse#5568: cached tokens are added again to an inclusive count."""
    split = read_usage(chat(cached_tokens=cached)).split
    assert (split.prompt_tokens, split.read, split.fresh) == (2006, cached, 2006 - cached)


def test_p22_more_cached_than_sent_is_refused():
    """sglang#11900: 122,884 cached of 59,946 prompt tokens."""
    with pytest.raises(InvalidRequestError, match="cannot be true: 122884 tokens read") as caught:
        read_usage({"prompt_tokens": 59946, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 122884}})
    assert caught.value.param == "prompt_tokens_details.cached_tokens"


@pytest.mark.parametrize(
    ("reported", "param"),
    [
        ({}, "prompt_tokens"),
        ({"prompt_tokens": -1}, "prompt_tokens"),
        ({"prompt_tokens": True}, "prompt_tokens"),
        ({"prompt_tokens": 1.5}, "prompt_tokens"),
        ({"prompt_tokens": "10"}, "prompt_tokens"),
        (chat(cached_tokens=2000, cache_write_tokens=7), "prompt_tokens_details.cached_tokens"),
        ({**chat(), "total_tokens": 2307}, "total_tokens"),
        ({**chat(), "completion_tokens_details": {"reasoning_tokens": 301}},
         "completion_tokens_details.reasoning_tokens"),
        ({**chat(), "prompt_tokens_details": [1]}, "prompt_tokens_details"),
        (responses(cached_tokens=15001), "input_tokens_details.cached_tokens"),
        (responses(cache_write_tokens=10, cache_write_tokens_details=by_ttl(5, 6)),
         "input_tokens_details.cache_write_tokens_details"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_is_named(reported, param):
    with pytest.raises(InvalidRequestError) as caught:
        read_usage(reported)
    assert caught.value.param == param
    assert str(caught.value).endswith(".")


def golden() -> list[dict[str, Any]]:
    if not CASES.exists():
        return []
    return [case for case in json.loads(CASES.read_text())["cases"] if case["provider"] in ("openai", "azure")]


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not beside this checkout")
@pytest.mark.parametrize("case", golden(), ids=lambda case: case["id"])
def test_golden(case):
    usages = [read_usage(record["usage"]) for record in case["records"]]
    expected = case["expected"]
    assert sum(each.split.prompt_tokens for each in usages) == expected["prompt_tokens"]
    assert sum(each.split.read for each in usages) == expected["cache_read_tokens"]
    assert sum(each.split.fresh for each in usages) == expected["fresh_input_tokens"]
    assert sum(each.output for each in usages) == expected["output_tokens"]
    for ttl in ("30m", "12h"):
        if (written := expected.get(f"cache_write_{ttl}_tokens")) is not None:
            assert sum(each.split.written.get(ttl, 0) for each in usages) == written
    if "cache_write_tokens" in expected:
        assert sum(each.split.written_tokens for each in usages) == expected["cache_write_tokens"]
