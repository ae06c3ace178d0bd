"""`kvledger price`: raw usage objects of every provider, by hand to the last digit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import InvalidRequestError

AMOUNTS = ("input_usd", "cache_read_usd", "cache_write_usd", "output_usd", "storage_usd", "total_usd")


def run(*arguments: str, usage: object = None):
    text = usage if isinstance(usage, str) else json.dumps(usage)
    return CliRunner().invoke(app, ["price", *arguments], input=text)


def priced(provider: str, model: str, usage: object, *more: str) -> dict[str, object]:
    result = run("--provider", provider, "--model", model, "--usage", "-", "--json", "-", *more, usage=usage)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


NOVEMBER = ("--at", "2026-11-12T09:00Z")

CASES = [
    (
        ("anthropic", "claude-sonnet-5-5"),
        {
            "input_tokens": 37,
            "cache_creation_input_tokens": 6000,
            "cache_read_input_tokens": 21400,
            "output_tokens": 820,
            "cache_creation": {"ephemeral_5m_input_tokens": 1500, "ephemeral_1h_input_tokens": 4500},
            "service_tier": "standard",
        },
        ("0.000074", "0.00214", "0.02175", "0.0082", "0", "0.032164"),
    ),
    (
        ("openai", "gpt-6.1-sol"),
        {
            "input_tokens": 15000,
            "input_tokens_details": {
                "cached_tokens": 5000,
                "cache_write_tokens": 6000,
                "cache_write_tokens_details": {"ttl_30m_tokens": 2000, "ttl_12h_tokens": 4000},
            },
            "output_tokens": 300,
        },
        ("0.008", "0.0005", "0.025", "0.003", "0", "0.0365"),
    ),
    (
        ("google", "gemini-2.5-pro"),
        {
            "promptTokenCount": 12000,
            "cachedContentTokenCount": 8192,
            "candidatesTokenCount": 400,
            "thoughtsTokenCount": 900,
            "totalTokenCount": 13300,
        },
        ("0.00476", "0.001024", "0", "0.013", "0", "0.018784"),
    ),
    (
        ("deepseek", "deepseek-flash"),
        {
            "prompt_tokens": 9000,
            "prompt_cache_hit_tokens": 7680,
            "prompt_cache_miss_tokens": 1320,
            "completion_tokens": 500,
        },
        ("0.000396", "0.00004608", "0", "0.0006", "0", "0.00104208"),  # 09:00 UTC, a Thursday: peak
    ),
    (
        ("kimi", "kimi-k3"),
        {
            "prompt_tokens": 3000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"cached_tokens": 1000, "cache_write_tokens": 1000},
        },
        ("0.003", "0.0003", "0.003", "0.0015", "0", "0.0078"),
    ),
    (
        ("groq", "openai/gpt-oss-120b"),
        {"prompt_tokens": 2000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 1000}},
        ("0.00015", "0.000075", "0", "0.00006", "0", "0.000285"),
    ),
]


@pytest.mark.parametrize(("whose", "usage", "amounts"), CASES, ids=[case[0][0] for case in CASES])
def test_raw_usage_objects(whose, usage, amounts):
    found = priced(*whose, usage, *NOVEMBER)
    assert tuple(found[name] for name in AMOUNTS) == amounts
    assert "reason" not in found
    assert "kvledger" in str(found["prices"])


def test_dates_tiers_regions_and_storage():
    usage = CASES[0][1]
    assert priced("anthropic", "claude-sonnet-5-5", usage, "--at", "2026-10-01")["total_usd"] == "0.034304"
    half = priced("anthropic", "claude-sonnet-5-5", usage, *NOVEMBER, "--service-tier", "batch")
    assert half["total_usd"] == "0.016082"
    us = priced("anthropic", "claude-sonnet-5-5", usage, *NOVEMBER, "--region", "us")
    assert us["total_usd"] == "0.0353804"
    stored = priced("google", "gemini-2.5-pro", CASES[2][1], *NOVEMBER, "--storage-token-hours", "8192")
    assert (stored["storage_usd"], stored["total_usd"]) == ("0.036864", "0.055648")


def test_amounts_have_no_exponent():
    found = priced("openai", "gpt-5", {"prompt_tokens": 1, "completion_tokens": 0}, *NOVEMBER)
    assert found["input_usd"] == "0.00000125"


def test_a_whole_response_is_accepted_too(tmp_path: Path):
    response = {"id": "msg_1", "usage": CASES[0][1]}
    file = tmp_path / "response.json"
    file.write_text(json.dumps(response))
    result = run(
        "--provider", "anthropic", "--model", "claude-sonnet-5.5", "--usage", str(file), *NOVEMBER, "--json", "-"
    )
    assert json.loads(result.stdout)["total_usd"] == "0.032164"
    written = tmp_path / "price.json"
    run(
        "--provider",
        "anthropic",
        "--model",
        "claude-sonnet-5.5",
        "--usage",
        str(file),
        *NOVEMBER,
        "--json",
        str(written),
    )
    assert json.loads(written.read_text()) == json.loads(result.stdout)


def test_an_unknown_price_is_null_with_a_reason_and_near_names():
    found = priced("anthropic", "claude-sonet-5-5", CASES[0][1])
    assert {found[name] for name in AMOUNTS} == {None}
    assert "has no model claude-sonet-5-5" in str(found["reason"])
    assert "claude-sonnet-5-5" in found["near"]  # type: ignore[operator]
    part = priced(
        "openai",
        "gpt-4-turbo",
        {"prompt_tokens": 20, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 10}},
    )
    assert (part["cache_read_usd"], part["total_usd"], part["input_usd"]) == (None, None, "0.0001")


def test_the_table_says_what_no_cache_would_have_cost():
    result = run(
        "--provider", "anthropic", "--model", "claude-sonnet-5-5", "--usage", "-", *NOVEMBER, usage=CASES[0][1]
    )
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["cache", "write", "1h", "4,500", "4", "0.018"] in rows
    assert ["total", "0.032164"] in rows
    assert ["without", "a", "cache", "0.063074"] in rows  # (27,437 x 2 + 820 x 10) / 1,000,000
    unknown = run("--provider", "anthropic", "--model", "claude-sonet-5-5", "--usage", "-", usage=CASES[0][1]).stdout
    assert "Unknown: anthropic has no model claude-sonet-5-5" in unknown
    assert "Did you mean" in unknown


NOTHING = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 0, "prompt_cache_miss_tokens": 5}


@pytest.mark.parametrize(
    ("arguments", "usage", "says"),
    [
        (("--provider", "antropic", "--model", "x"), {}, "anthropic"),
        (
            ("--provider", "deepseek", "--model", "x", "--at", "yesterday"),
            NOTHING,
            "--at is 'yesterday', which is no date",
        ),
        (("--provider", "deepseek", "--model", "x"), "not json", "is not JSON"),
        (("--provider", "deepseek", "--model", "x"), [1], "is a JSON list"),
        (("--provider", "deepseek", "--model", "x"), NOTHING | {"prompt_cache_hit_tokens": 9}, "cannot be true"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, usage, says):
    result = run(*arguments, "--usage", "-", usage=usage)
    assert result.exit_code != 0
    assert isinstance(result.exception, InvalidRequestError)
    assert says in str(result.exception)
