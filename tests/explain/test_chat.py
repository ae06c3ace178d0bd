"""Conversations replayed through the prompt cache."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from kvledger.cache.miss import MissReason
from kvledger.clock import ManualClock
from kvledger.errors import ExplainError
from kvledger.explain.chat import EXAMPLE, read_conversation, replay
from kvledger.explain.chat_page import chat_page, chat_record
from kvledger.page.html import render
from kvledger.text.template import ChatTemplate
from tests.text.vocabularies import byte_level

TOKENIZER = byte_level()


def turns_of(messages=EXAMPLE, *, gap=60.0, ttl=300.0):
    clock = ManualClock()
    template = ChatTemplate(TOKENIZER.chat_template, TOKENIZER, clock=clock)
    return replay(TOKENIZER, template, messages, clock=clock, gap=gap, ttl=ttl)


def test_each_turn_reads_all_that_was_sent_and_answered_before():
    turns = turns_of()
    assert [turn.at for turn in turns] == [0, 60, 120]
    assert turns[0].reused == 0
    for before, turn in pairwise(turns):
        assert turn.reused == before.prompt + before.answer
        assert turn.reason is MissReason.COLD_START
    for turn in turns:
        assert turn.reused + turn.fresh == turn.prompt
        assert turn.written == turn.fresh + turn.answer


def test_after_the_time_to_live_everything_is_computed_again():
    turns = turns_of(gap=400.0)
    assert [turn.reused for turn in turns] == [0, 0, 0]
    assert turns[1].reason is MissReason.EXPIRED


def test_a_question_without_an_answer_is_a_turn_too():
    turns = turns_of([{"role": "user", "content": "hello"}])
    assert (len(turns), turns[0].answer) == (1, 0)


def test_record_and_page():
    turns = turns_of()
    record = json.loads(json.dumps(chat_record(turns)))
    assert record["total"]["prompt_tokens"] == sum(turn.prompt for turn in turns)
    assert record["turns"][1]["miss"]["reason"] == "cold_start"
    page = render(chat_page(turns, "tiny"))
    assert "Turn by turn" in page


def test_conversations_in_both_shapes():
    messages = [{"role": "user", "content": "x"}]
    assert read_conversation(json.dumps(messages), "f") == messages
    assert read_conversation(json.dumps({"model": "m", "messages": messages}), "f") == messages


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "f is not JSON"),
        ("[]", "no messages"),
        ("3", "no messages"),
        ('{"x": 1}', "no messages"),
        ("[1]", r"messages\[0\] is not an object"),
        ('[{"role": "user"}]', r"messages\[0\]\.content"),
        ('[{"role": 1, "content": "x"}]', r"messages\[0\]\.role"),
        ('[{"role": "assistant", "content": "x"}]', "asks nothing"),
    ],
)
def test_what_is_no_conversation(text, says):
    with pytest.raises(ExplainError, match=says):
        read_conversation(text, "f")


@pytest.mark.parametrize("wrong", [{"gap": -1.0}, {"gap": float("nan")}, {"gap": float("inf")}, {"ttl": 0.0}])
def test_impossible_times(wrong):
    with pytest.raises(ExplainError, match="--"):
        turns_of(**wrong)
