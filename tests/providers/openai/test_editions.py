"""Which rules hold for a model on a day, and that they are those of the fact sheet."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kvledger.providers.openai.editions import edition_of, family, newest_edition, rules

FACTS = Path(__file__).parents[4] / "shared" / "facts" / "providers.json"


def day(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("model", "at", "name", "certain"),
    [
        ("gpt-5.6-sol", "2026-07-08", "breakpoints, guide of 2026-07", False),
        ("gpt-5.6-sol", "2026-07-09", "breakpoints, guide of 2026-07", True),
        ("gpt-6-sol", "2026-10-31T23:59:59", "breakpoints, guide of 2026-07", True),
        ("gpt-6-sol", "2026-11-01", "breakpoints, SDK of 2026-11", True),
        ("gpt-7-nova", "2026-11-30", "breakpoints, SDK of 2026-11", True),
        ("gpt-5.5", "2026-11-30", "automatic, 2,048 stops", True),
        ("gpt-5.5-pro", "2026-11-30", "no caching", True),
        ("o4-mini", "2025-06-01", "automatic, 128 steps, in memory", True),
    ],
)
def test_by_model_and_day(model, at, name, certain):
    edition = edition_of(model, day(at))
    assert (edition.name, edition.certain) == (name, certain)


def test_every_name_of_the_file_is_found_under_itself():
    for edition in rules().edition:
        for model in edition.models:
            assert newest_edition(model.replace("*", "-x")).kind == edition.kind


@pytest.mark.parametrize(
    ("name", "model"),
    [("GPT-5.2-2025-12-11", "gpt-5.2"), ("ft:gpt-4o-mini-2024-07-18:acme::8x", "gpt-4o-mini"), ("openai/o3", "o3")],
)
def test_family(name, model):
    assert family(name) == model


def facts() -> list[dict[str, Any]]:
    if not FACTS.exists():
        return []
    entries = json.loads(FACTS.read_text())["entries"]
    return [entry for entry in entries if entry["platform"] == ["openai-api"]]


@pytest.mark.skipif(not FACTS.exists(), reason="the shared facts are not beside this checkout")
@pytest.mark.parametrize("entry", facts(), ids=lambda entry: entry["id"])
def test_agrees_with_the_fact_sheet(entry):
    kinds = {"breakpoint": "breakpoints", "prefix_step": "steps", "none": "none"}
    for model in entry["models"]:
        edition = newest_edition(model)
        assert edition.kind == kinds[entry["granularity"]["kind"]]
        if edition.kind == "steps":
            assert edition.step == entry["granularity"]["step"]
            assert set(edition.retention) == {option["name"] for option in entry["ttl_options"]}
        if edition.kind == "breakpoints":
            assert edition.minimum == entry["min_cache_tokens"][0]["tokens"]
            assert edition.latest == entry["lookback"]["positions"]
            assert rules().lifetimes == {option["name"]: option["seconds"] for option in entry["ttl_options"]}
