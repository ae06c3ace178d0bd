"""Marks placed best: the dynamic programme against every possible placement."""

from __future__ import annotations

from itertools import accumulate, combinations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvledger.audit.costs import Costs, money
from kvledger.audit.lineage import trace
from kvledger.audit.marks import best_placement
from kvledger.audit.normalise import read
from kvledger.audit.placement import LOOKBACK, Rate, best_marks, value
from kvledger.audit.replay import replay
from tests.audit.logs import MARK, PRICES, START, SYSTEM, body, prose, records, turns

ANTHROPIC = Rate(fresh=100, write=125, read=10)


@st.composite
def prompts(draw):
    count = draw(st.integers(1, 9))
    tokens = list(accumulate(draw(st.lists(st.integers(1, 500), min_size=count, max_size=count))))
    ends = st.integers(0, count - 1)
    entries = sorted(draw(st.sets(ends, max_size=3)))
    followers = draw(st.lists(st.integers(-1, count - 1), max_size=5))
    return tokens, entries, followers


@settings(max_examples=300, deadline=None)
@given(prompts(), st.integers(1, 4))
def test_no_placement_is_cheaper(prompt, most):
    tokens, entries, followers = prompt
    chosen = best_marks(tokens, entries, followers, ANTHROPIC, most=most)
    assert len(chosen) <= most
    every = [each for size in range(most + 1) for each in combinations(range(len(tokens)), size)]
    least = min(value(marks, tokens, entries, followers, ANTHROPIC) for marks in every)
    assert value(chosen, tokens, entries, followers, ANTHROPIC) == least


@settings(max_examples=30, deadline=None)
@example({1}, [0, 21])  # one mark that reads and writes, at the last place that still sees the entry
@given(st.sets(st.integers(0, 27), min_size=1, max_size=3), st.lists(st.integers(0, 27), max_size=3))
def test_no_placement_is_cheaper_beyond_the_look_back(entries, followers):
    tokens = [100 * (end + 1) for end in range(LOOKBACK + 8)]
    chosen = best_marks(tokens, sorted(entries), followers, ANTHROPIC, most=2)
    every = [each for size in range(3) for each in combinations(range(len(tokens)), size)]
    least = min(value(marks, tokens, entries, followers, ANTHROPIC) for marks in every)
    assert value(chosen, tokens, entries, followers, ANTHROPIC) == least


def test_nobody_follows_so_nothing_is_marked():
    assert best_marks([1000, 2000], [], [], ANTHROPIC) == ()


def placed(bodies, times=None):
    requests, _ = read(records("anthropic", bodies, times), assumed_at=START)
    costs = Costs(PRICES)
    kins = trace(requests)
    return replay(requests, costs), replay(requests, costs, best_placement(requests, kins, costs))


def test_single_questions_are_best_marked_before_the_question():
    bodies = [body("anthropic", SYSTEM, turns(1, f"q{number}x")) for number in range(5)]
    before, after = placed(bodies)
    assert before.read == 0
    assert after.read == 4 * 6000
    assert money(after.cost) < money(before.cost) / 2


def test_the_last_turn_of_a_chat_is_best_not_written():
    said = turns(9)
    bodies = [body("anthropic", SYSTEM, said[: 2 * number + 1]) for number in range(5)]
    before, after = placed(bodies)
    assert after.read == before.read
    assert after.cost < before.cost


def test_other_providers_prompts_stay_as_they_are():
    requests, _ = read(records("gemini", [body("gemini", prose("s", 3000), turns(1))]), assumed_at=START)
    edit = best_placement(requests, trace(requests), Costs(PRICES))
    assert edit(requests[0], requests[0].prompt) is requests[0].prompt
    assert MARK
