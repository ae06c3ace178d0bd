"""The least that is cached, by model, platform and day."""

from __future__ import annotations

import json
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.providers.anthropic.editions import model_named, rules
from kvledger.providers.anthropic.rules import AnthropicRules
from tests.providers.anthropic.world import body, day, text, user
from tests.providers.letters import World, reasons

FACTS = Path(__file__).parents[4] / "shared" / "facts" / "providers.json"

# From the page's history (Claude API), and for Bedrock from its user guide.
TABLE = [
    ("claude-fable-5-2", "2026-11-12", 512, False),
    ("claude-mythos-5-2", "2026-11-12", 512, False),
    ("claude-fable-5-1", "2026-11-12", 512, True),
    ("claude-mythos-5-1", "2026-11-12", 512, True),
    ("claude-opus-5-5", "2026-11-12", 512, True),
    ("claude-sonnet-5-5", "2026-09-28", 512, True),
    ("claude-haiku-5-5", "2026-11-12", 512, True),
    ("claude-opus-5", "2026-07-24", 512, True),
    ("claude-opus-5", "2026-07-23", 512, False),
    ("claude-sonnet-5", "2026-06-30", 1024, True),
    ("claude-fable-5", "2026-06-09", 512, True),
    ("claude-mythos-5", "2026-06-09", 512, True),
    ("claude-opus-4-8", "2026-05-28", 1024, True),
    ("claude-opus-4-7", "2026-04-20", 4096, True),
    ("claude-opus-4-7", "2026-06-05", 4096, True),
    ("claude-opus-4-7", "2026-06-06", 4096, False),
    ("claude-opus-4-7", "2026-06-08", 4096, False),
    ("claude-opus-4-7", "2026-06-09", 2048, True),
    ("claude-mythos-preview", "2026-04-07", 4096, True),
    ("claude-mythos-preview", "2026-06-05", 4096, True),
    ("claude-mythos-preview", "2026-06-09", 2048, True),
    ("claude-opus-4-6", "2026-11-12", 4096, True),
    ("claude-sonnet-4-6", "2026-03-01", 2048, False),
    ("claude-sonnet-4-6", "2026-03-13", 2048, True),
    ("claude-sonnet-4-6", "2026-05-11", 2048, True),
    ("claude-sonnet-4-6", "2026-05-12", 2048, False),
    ("claude-sonnet-4-6", "2026-05-13", 1024, True),
    ("claude-opus-4-5", "2026-11-12", 4096, True),
    ("claude-haiku-4-5", "2026-11-12", 4096, True),
    ("claude-sonnet-4-5", "2026-11-12", 1024, True),
    ("claude-opus-4-1", "2026-11-12", 1024, True),
    ("claude-opus-4", "2026-11-12", 1024, True),
    ("claude-sonnet-4", "2026-11-12", 1024, True),
    ("claude-3-7-sonnet", "2026-05-13", 1024, True),
    ("claude-3-7-sonnet", "2026-05-14", 1024, False),
    ("claude-3-5-haiku", "2026-11-12", 2048, True),
    ("claude-3-haiku", "2026-04-08", 2048, True),
    ("claude-3-haiku", "2026-04-09", 2048, False),
]
BEDROCK = [
    ("claude-opus-5-5", "2026-11-12", 512, True),
    ("claude-fable-5", "2026-07-17", 1024, True),
    ("claude-fable-5", "2026-07-18", 512, True),
    ("claude-opus-4-8", "2026-11-12", 1024, True),
    ("claude-opus-4-7", "2026-11-12", 4096, False),
    ("claude-haiku-4-5", "2026-11-12", 4096, True),
    ("claude-opus-4-1", "2026-11-12", 1024, False),
]


def prefix(model: str, tokens: int) -> dict[str, Any]:
    return body([user("next")], model=model, system=[text("x" * tokens, marked=True)])


@pytest.mark.parametrize(("model", "on", "minimum", "certain"), TABLE)
def test_one_token_below_is_not_cached_and_the_minimum_is(model: str, on: str, minimum: int, certain: bool) -> None:
    check("claude-api", model, on, minimum, certain)


@pytest.mark.parametrize(("model", "on", "minimum", "certain"), BEDROCK)
def test_bedrock_has_minimums_of_its_own(model: str, on: str, minimum: int, certain: bool) -> None:
    check("bedrock", model, on, minimum, certain)


def check(platform: str, model: str, on: str, minimum: int, certain: bool) -> None:
    world = World(AnthropicRules(platform), at=day(on) - 60)
    for _ in range(2):
        below = world.ask(prefix(model, minimum - 1), after=60)
        assert (below.split.read, below.split.written_tokens, below.certain) == (0, 0, certain)
        assert reasons(below) == ["below_minimum"]
        assert str(minimum) in below.breaks[0].detail
        assert str(minimum - 1) in below.breaks[0].detail
        assert below.rule.startswith(f"{platform}/{model}/")
    written = world.ask(prefix(model, minimum), after=1)
    assert (written.split.read, written.split.written) == (0, {"5m": minimum})
    assert world.ask(prefix(model, minimum), after=1).split.read == minimum


def test_every_model_of_the_rules_has_a_row() -> None:
    assert {row[0] for row in TABLE} == {model.name for model in rules().model}


def test_what_counts_is_the_prefix_up_to_the_mark() -> None:
    world = World(AnthropicRules())
    request = body([user("x" * 5000)], system=[text("y" * 511, marked=True)])
    assert reasons(world.ask(request)) == ["below_minimum"]
    request["tools"] = [{"name": "t", "input_schema": {}}]  # tools count too
    assert world.ask(request).split.written_tokens > 512


def test_a_short_mark_does_not_spoil_a_long_one() -> None:
    world = World(AnthropicRules())
    request = body([user(text("x" * 600, marked=True))], system=[text("y" * 100, marked=True)])
    assert world.ask(request).split.written == {"5m": 700}
    assert world.ask(request).split.read == 700


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-sonnet-5.5", "claude-sonnet-5-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("us.anthropic.claude-opus-4-7-v1:0", "claude-opus-4-7"),
        ("anthropic/claude-haiku-4.5", "claude-haiku-4-5"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet"),
        ("claude-opus-4-1@20250805", "claude-opus-4-1"),
        ("claude-opus-4-0", "claude-opus-4"),
        ("claude-3-5-haiku-20241022", "claude-3-5-haiku"),
    ],
)
def test_models_go_by_many_names(name: str, model: str) -> None:
    assert model_named(name).name == model


def test_an_unknown_model_is_refused_with_near_names() -> None:
    with pytest.raises(InvalidRequestError, match="did you mean claude-sonnet-5") as refused:
        World(AnthropicRules()).ask(prefix("claude-sonet-5", 2000))
    assert refused.value.param == "model"
    with pytest.raises(ValueError, match="use one of claude-api"):
        AnthropicRules("azure")


@pytest.mark.skipif(not FACTS.exists(), reason="the collected facts are not on this machine")
def test_the_rules_are_those_of_the_facts() -> None:
    covered = set()
    for entry in json.loads(FACTS.read_text())["entries"]:
        if entry["provider"] != "anthropic" or "claude-api" not in entry["platform"]:
            continue
        for name in entry["models"]:
            model = model_named(name)
            covered.add(model.name)
            ours = [(each.tokens, each.since, each.until, each.confidence) for each in model.minimum]
            theirs = [
                (each["tokens"], as_date(each["valid_from"]), as_date(each["valid_until"]), each["confidence"])
                for each in entry["min_cache_tokens"]
            ]
            assert ours == theirs, name
    assert covered == {model.name for model in rules().model}


def as_date(value: str | None) -> date | None:
    return date.fromisoformat(value) if value else None


def test_records_of_a_model_do_not_overlap() -> None:
    for model in rules().model:
        for records in (model.minimum, model.bedrock):
            for one, next_one in pairwise(records):
                assert one.until is not None
                assert next_one.since is not None
                assert one.until + timedelta(days=1) <= next_one.since
