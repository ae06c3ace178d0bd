"""What workloads cost, against sums done by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import InvalidRequestError, PlanError
from kvledger.plan.cost import CostPlan, break_evens, compacted, compare, routed
from kvledger.plan.cost_report import cost_page, cost_record
from kvledger.plan.workload import Estimate, Workload, preset, preset_names, read_workload, requests, text

AT = datetime(2026, 11, 30, 9, tzinfo=UTC).timestamp()

TWO_ASKS = Workload(
    shared_tokens=4000,
    question_tokens=100,
    answer_tokens=50,
    conversations_per_hour=2,
    hours=1,
    hours_per_month=1,
)
"""Two one-turn conversations, half an hour apart."""


def cost_of(workload: Workload, name: str, mode: str) -> Decimal | None:
    return next(choice.cost for choice in compare(workload, [name], at=AT) if choice.mode == mode)


def test_a_price_without_a_cache_is_input_and_output() -> None:
    # Sonnet 5.5: 2 x 4,100 tokens at 2, 2 x 50 at 10 US dollars per million.
    assert cost_of(TWO_ASKS, "anthropic:claude-sonnet-5.5", "no marks") == Decimal("0.0174")


def test_marks_of_five_minutes_have_expired_after_half_an_hour() -> None:
    # Each request writes all of its 4,100 tokens at 2.50.
    assert cost_of(TWO_ASKS, "anthropic:claude-sonnet-5.5", "all marks, 5m") == Decimal("0.0215")


def test_an_hour_s_mark_behind_the_shared_text_is_read_by_the_second() -> None:
    # First: 4,000 at 4 (1 h) and 100 at 2.50. Second: 4,000 read at 0.10, 100 written at 2.50. Output 100 at 10.
    expected = Decimal("0.016") + Decimal("0.0004") + 2 * Decimal("0.00025") + Decimal("0.001")
    assert cost_of(TWO_ASKS, "anthropic:claude-sonnet-5.5", "all marks, 1h and 5m") == expected


def test_an_implicit_breakpoint_behind_changing_questions_pays_and_never_reads() -> None:
    found = {choice.mode: choice for choice in compare(TWO_ASKS, ["openai:gpt-6-sol"], at=AT)}
    # 2 x 4,100 written at 2.50 and 100 of output at 10, against 2 x 4,100 at 2 without.
    assert found["implicit, 30m"].cost == Decimal("0.0215")
    assert found["implicit, 30m"].read == 0
    assert found["all marks, 30m"].read == 4000


def test_storage_is_paid_by_the_hour_and_creation_as_input() -> None:
    workload = Workload(
        shared_tokens=10_000,
        question_tokens=100,
        answer_tokens=50,
        conversations_per_hour=2,
        hours=1,
        hours_per_month=1,
    )
    # Flash: created 10,000 at 0.75; read 20,000 at 0.075; 200 fresh at 0.75; 100 out at 3.75; stored 10,000 at 0.50.
    expected = Decimal("0.0075") + Decimal("0.0015") + Decimal("0.00015") + Decimal("0.000375") + Decimal("0.005")
    assert cost_of(workload, "gemini:gemini-3.8-flash", "explicit cache") == expected


def test_what_is_asked_at_once_cannot_read_what_is_being_written() -> None:
    workload = Workload(
        shared_tokens=4000, fan_out=3, conversations_per_hour=1, hours=1, hours_per_month=1, question_tokens=100
    )
    found = {choice.mode: choice for choice in compare(workload, ["anthropic:claude-sonnet-5.5"], at=AT)}
    assert found["all marks, 5m"].read == 0
    assert found["all marks, 5m"].written == {"5m": 3 * 4100}


def test_a_month_is_so_many_times_the_simulated_hours() -> None:
    once = cost_of(TWO_ASKS, "openai:gpt-5.4", "automatic")
    month = Workload(
        shared_tokens=4000,
        question_tokens=100,
        answer_tokens=50,
        conversations_per_hour=2,
        hours=1,
        hours_per_month=720,
    )
    assert once is not None
    assert cost_of(month, "openai:gpt-5.4", "automatic") == once * 720


def test_break_even_is_the_first_number_of_reads_that_pays() -> None:
    found = {each.what: each.reads for each in break_evens(["anthropic:claude-sonnet-4.5"], at=AT)}
    assert found == {"a 5m write": 1, "a 1h write": 2}  # (1.25 - 1) / 0.9 and (2 - 1) / 0.9, and then one more


def test_an_unknown_price_is_unknown_and_comes_last() -> None:
    choices = compare(Workload(shared_tokens=4000, batch=True), ["kimi:kimi-k3"], at=AT)
    assert choices[0].cost is not None
    assert choices[-1].mode.endswith(", batch")  # Kimi publishes no batch price
    assert choices[-1].cost is None
    assert "no batch price" in choices[-1].unknown[0]


def test_compaction_shortens_the_history_and_loses_its_cache() -> None:
    workload = Workload(turns=12, question_tokens=200, answer_tokens=800, gap_seconds=10, conversations_per_hour=1)
    choice = compare(workload, ["openai:gpt-5.4"], at=AT)[0]
    found = compacted(workload, choice, at=AT)
    assert found is not None
    limit, summary, outcome = found
    assert (limit, summary) == (5500, 1375)
    assert outcome.prompt_tokens < choice.prompt_tokens
    assert compacted(TWO_ASKS, choice, at=AT) is None


def test_each_half_of_a_routed_load_warms_its_own_cache() -> None:
    workload = Workload(shared_tokens=4000, conversations_per_hour=8, gap_seconds=5, turns=2)
    dear, cheap = (compare(workload, [name], at=AT)[0] for name in ("openai:gpt-6.1-sol", "openai:gpt-6-luna"))
    cost = routed(workload, dear, cheap, at=AT)
    assert cost is not None
    assert dear.cost is not None
    assert cheap.cost is not None
    assert cost > (dear.cost + cheap.cost) / 2  # two first writes where one load has one


def test_the_same_workload_makes_the_same_requests() -> None:
    workload = preset("support-bot")
    assert list(requests(workload)) == list(requests(workload))
    times = [asked.at for asked in requests(workload)]
    assert times == sorted(times)


@given(st.integers(1, 3000), st.integers(0, 99))
def test_made_up_text_has_the_tokens_it_was_asked_for(tokens: int, number: int) -> None:
    assert Estimate().count(text("user", number, tokens)) == tokens


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_priced_by_every_provider_s_rules(name: str) -> None:
    models = ["anthropic:claude-haiku-5.5", "openai:gpt-6-luna"]
    plan = CostPlan.of(preset(name), models, at=AT)
    assert {choice.provider for choice in plan.choices if choice.cost is not None} == {"anthropic", "openai"}
    assert set(plan.advice_holds) == set(models)
    record = cost_record(plan)
    assert record["choices"][0]["cost_usd"] == f"{plan.choices[0].cost:f}"
    assert cost_page(plan).blocks


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("turns = 0", "turns is 0"),
        ("hours = nan", "hours is nan"),
        ("hours = 0", "hours is 0"),
        ("turn = 3", "unknown field `turn`"),
        ("documents = 3", "go together"),
        ("turns = 'many'", "turns"),
        ("conversations_per_hour = 1e9", "are the most"),
        ("shared_tokens = 99999999999999999999", "shared_tokens is"),
        ("shared_tokens = 1000000000", "are the most"),
        ("answer_tokens = 900000\nturns = 50", "are the most"),
        ("gap_seconds = 1e300", "gap_seconds is"),
        ("= 3", "no workload"),
    ],
)
def test_a_bad_workload_is_named(tmp_path: Path, written: str, said: str) -> None:
    path = tmp_path / "w.toml"
    path.write_text(written)
    with pytest.raises(PlanError, match=said) as caught:
        read_workload(path)
    assert str(path) in str(caught.value)


def test_a_mark_on_what_stays_costs_the_same_wherever_prices_are_the_same() -> None:
    # What a newcomer asked: one-off questions under one system text. Sonnet 5.5 and GPT-6.1 Sol have the same prices,
    # so the same marks must cost the same: 6,000 written once at 2.50, read 59 times at 0.10.
    workload = Workload(
        shared_tokens=6000,
        question_tokens=100,
        answer_tokens=300,
        conversations_per_hour=60,
        hours=1,
        hours_per_month=1,
    )
    cost = cost_of(workload, "anthropic:claude-sonnet-5.5", "static marks, 5m")
    assert cost == cost_of(workload, "openai:gpt-6.1-sol", "static marks, 30m")
    assert cost == Decimal("0.015") + 59 * Decimal("0.0006") + 60 * (Decimal("0.0002") + Decimal("0.003"))


def test_a_time_without_rules_is_refused() -> None:
    with pytest.raises(PlanError, match="known from 2024-01-01"):
        compare(TWO_ASKS, ["openai:gpt-5.4"], at=0.0)


def test_unknown_names_get_near_ones() -> None:
    with pytest.raises(PlanError, match="support-bot"):
        preset("support-bott")
    with pytest.raises(InvalidRequestError, match="anthropic"):
        compare(TWO_ASKS, ["antropic:claude-sonnet-5.5"], at=AT)
