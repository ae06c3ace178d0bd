"""`benchmarks/multiturn.py`: the conversations that are held, and what could have been reused of them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def multiturn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("multiturn")


class Scripted:
    """Answers with as many letters as it may, and remembers everything it has computed, character by character."""

    name, setting = "kvledger", ""

    def __init__(self, multiturn) -> None:
        self.multiturn = multiturn
        self.computed: list[str] = []
        self.order: list[str] = []

    def reply(self, messages, max_tokens):
        prompt = "".join(f"<{m.role}>{m.content}|" for m in messages) + "<assistant>"
        self.order.append(messages[1].content)
        cached = max((self.multiturn.common(prompt[:-1], known) for known in self.computed), default=0)
        text = "y" * max_tokens
        self.computed.append(prompt + text[:-1])
        return self.multiturn.Reply(text, len(prompt), max_tokens, cached)


@pytest.fixture
def letters(multiturn, monkeypatch: pytest.MonkeyPatch):
    """A tokenizer with a token per character."""

    class Letters:
        def encode(self, text: str) -> list[int]:
            return list(map(ord, text))

    monkeypatch.setattr(
        multiturn,
        "prompt_tokens",
        lambda _, messages: tuple("".join(f"<{m.role}>{m.content}|" for m in messages) + "<assistant>"),
    )
    return Letters()


def test_what_could_be_reused_is_what_a_perfect_cache_reuses(multiturn, letters) -> None:
    partner = Scripted(multiturn)
    script = multiturn.Script(conversations=3, turns=4, system=30, question=12, answer=5)
    openings: list[tuple[int, ...]] = []
    for number in range(2):
        (tally,) = multiturn.hold([partner], letters, script, number, openings)
        assert tally.cached == tally.possible > 0
        assert tally.output_tokens == 3 * 4 * 5
        assert tally.prompt_tokens > tally.possible
    assert len(openings) == 6


def test_conversations_take_turns(multiturn, letters) -> None:
    partner = Scripted(multiturn)
    multiturn.hold([partner], letters, multiturn.Script(2, 3, 8, 6, 2), 0, [])
    first, second = partner.order[:2]
    assert first != second
    assert partner.order == [first, second] * 3


def test_an_engine_that_does_not_tell_what_it_reused_has_no_sum(multiturn) -> None:
    tally = multiturn.Tally()
    tally.add(multiturn.Reply("", 10, 1, 5), 1.0, 5)
    tally.add(multiturn.Reply("", 10, 1, None), 1.0, 5)
    tally.add(multiturn.Reply("", 10, 1, 5), 1.0, 5)
    assert (tally.cached, tally.possible, tally.seconds) == (None, 15, 3.0)


def test_the_best_setting_of_the_best_peer_counts(multiturn) -> None:
    def figure(name: str, setting: str, *seconds: float):
        return multiturn.Figure(name, setting, [multiturn.Tally(each, 100, 40, 50, 60) for each in seconds])

    figures = [
        figure("kvledger", "", 3.0, 1.0, 2.0),
        figure("llama-server", "fa on", 9.0, 9.0, 1.0),
        figure("llama-server", "fa off", 8.0, 8.0, 8.0),
        figure("openvino", "f32", 5.0, 5.0, 5.0),
    ]
    told = multiturn.report(Path("m.gguf"), figures)
    assert told["seconds"] == {"kvledger": 2.0, "llama-server": 8.0, "openvino": 5.0}
    assert told["share_of_best_peer"] == pytest.approx(0.4)
    assert (told["reused_tokens"], told["possible_tokens"]) == (50, 60)
    assert "| openvino | f32 | 5.00 | 0.40 of it | 100 | 50 | 60 |" in multiturn.table(figures).splitlines()


def test_texts_have_the_length_that_was_asked_for(multiturn) -> None:
    class Words:
        def encode(self, text: str) -> list[str]:
            return text.split()

    draw = multiturn.random.Random(1)
    text = multiturn.text_of(Words(), draw, 60)
    assert len(text.split()) == 60
    assert multiturn.text_of(Words(), draw, 60) != text
