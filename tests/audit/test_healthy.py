"""No finding on a healthy log."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.audit.logs import DIALECTS, SYSTEM, TOOLS, audited, body, codes, prose, record, records, reported, turns


def chat(dialect, seed="q", count=9):
    said = turns(count, seed)
    return [body(dialect, SYSTEM, said[:number]) for number in range(1, count + 1, 2)]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("with_usage", [True, False])
def test_an_append_only_chat(dialect, with_usage):
    log = records(dialect, chat(dialect))
    result = audited(reported(log) if with_usage else log)
    assert codes(result) == []
    assert result.requests == 5
    assert result.rules.read > result.rules.prompt_tokens // 2
    if with_usage:
        assert result.observed == result.rules


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_first_cold_request(dialect):
    assert codes(audited(reported(records(dialect, chat(dialect)[:1])))) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_different_prompts_that_have_nothing_in_common(dialect):
    bodies = [body(dialect, prose(f"s{number}x", 3000), turns(1, f"q{number}x")) for number in range(6)]
    assert codes(audited(reported(records(dialect, bodies)))) == []


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name not in ("anthropic", "openai-breakpoints")])
def test_new_conversations_under_one_system_text(dialect):
    bodies = [each for seed in "abc" for each in chat(dialect, seed)]
    assert codes(audited(reported(records(dialect, bodies)))) == []


def test_new_conversations_with_a_mark_on_the_system_text():
    system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
    bodies = []
    for seed in "abc":
        bodies += [{**each, "system": system, "tools": TOOLS} for each in chat("anthropic", seed)]
    assert codes(audited(reported(records("anthropic", bodies)))) == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_last_question_asked_anew(dialect):
    said = turns(5)
    again = [*said[:4], prose("another", 300)]
    bodies = [body(dialect, SYSTEM, said[:3]), body(dialect, SYSTEM, said), body(dialect, SYSTEM, again)]
    assert codes(audited(reported(records(dialect, bodies)))) == []


def test_two_conversations_by_turns():
    log = []
    for number, (one, other) in enumerate(zip(chat("openai-steps", "a"), chat("openai-steps", "b"), strict=True)):
        log += [record(2 * number, "openai-steps", one), record(2 * number + 1, "openai-steps", other)]
    result = audited(reported(log))
    assert codes(result) == []
    assert len(result.groups["conversation"]) == 2


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([name for name in DIALECTS if name not in ("anthropic", "openai-breakpoints")]),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=14),
)
def test_conversations_that_take_turns_in_any_order(dialect, order):
    rounds, log = dict.fromkeys("abcd", 0), []
    for number, seed in enumerate(order):
        rounds[seed] += 1
        log.append(record(number, dialect, body(dialect, SYSTEM, turns(2 * rounds[seed] - 1, seed))))
    assert codes(audited(reported(log))) == []
