"""The memory of sampled tokens."""

from __future__ import annotations

import pytest

from kvledger.text.answers import Answers


def test_an_answer_is_recalled_only_where_it_was_given():
    answers = Answers()
    answers.remember("t", (1, 2, 3), "hello", [4, 5])
    assert answers.recall("t", (1, 2, 3), "hello") == (4, 5)
    for tenant, tokens, text in (
        ("u", (1, 2, 3), "hello"),
        ("", (1, 2, 3), "hello"),
        ("t", (1, 2), "hello"),
        ("t", (1, 2, 4), "hello"),
        ("t", (1, 2, 3), "hello "),
        ("t", (1, 2, 3), ""),
    ):
        assert answers.recall(tenant, tokens, text) is None


def test_parts_of_the_key_cannot_run_into_each_other():
    answers = Answers()
    answers.remember("ab", (), "c", [1])
    assert answers.recall("a", (), "bc") is None
    assert answers.recall("abc", (), "") is None
    answers.remember("", (0x64636261,), "", [2])  # the bytes "abcd"
    assert answers.recall("abcd", (), "") is None
    assert answers.recall("", (), "abcd") is None


def test_the_latest_of_two_answers_with_one_text_counts():
    answers = Answers()
    answers.remember("t", (1,), "hello", [4, 5])
    answers.remember("t", (1,), "hello", [6])
    assert answers.recall("t", (1,), "hello") == (6,)


def test_the_least_recently_used_goes_first():
    answers = Answers(max_tokens=3 * (32 + 10))
    for i in range(3):
        answers.remember("t", (i,), "x", [i] * 10)
    assert answers.recall("t", (0,), "x") == (0,) * 10
    answers.remember("t", (3,), "x", [3] * 10)
    assert [answers.recall("t", (i,), "x") is not None for i in range(4)] == [True, False, True, True]


def test_it_stays_within_its_bound_whatever_comes():
    answers = Answers(max_tokens=1000)
    for i in range(500):
        answers.remember("t", (i % 60,), "x", range(i % 70))
        held = [tokens for j in range(60) if (tokens := answers.recall("t", (j,), "x")) is not None]
        assert sum(len(tokens) + 32 for tokens in held) <= 1000
    answers.remember("t", (1,), "huge", range(2000))
    assert answers.recall("t", (1,), "huge") is None


def test_tokens_of_the_wrong_kind_are_a_fault_of_the_caller():
    with pytest.raises((TypeError, OverflowError)):
        Answers().remember("t", (1,), "x", [-1])
