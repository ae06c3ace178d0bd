"""Text as it is shown: stop strings across token boundaries, whole characters, and no dependence on how tokens cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engine.output import OutputText
from tests.engine.scripted_model import EOS, PIECES, PieceTokenizer

IDS = {piece: token for token, piece in enumerate(PIECES)}
LEAD, TAIL = "猫".encode()[:1], "猫".encode()[1:]


def push_all(text: OutputText, *pieces: bytes) -> list[str]:
    return [text.push(IDS[piece]) for piece in pieces]


@pytest.mark.parametrize(
    ("stop", "pieces", "shown", "rest", "stopped"),
    [
        ((), [b"a", b"b"], ["a", "b"], "", False),
        # "ab" may begin "abc": held until the next character decides
        (("abc",), [b"ab", b"c"], ["", ""], "", True),
        (("abc",), [b"ab", b"d"], ["", "abd"], "", False),
        (("abc",), [b"d", b"a", b"bc"], ["d", "", ""], "", True),
        (("abc",), [b"a", b"ab", b"c"], ["", "a", ""], "", True),
        (("abc",), [b"ab", b"ab"], ["", "ab"], "ab", False),
        # the stop string inside one token, text before it only
        (("a",), [b"d", b"cab", b"e"], ["d", "c", ""], "", True),
        # of two, the one that is complete first ends the text, although the other began earlier
        (("abcd", "bc"), [b"ab", b"c", b"d"], ["", "a", ""], "", True),
        (("abcd", "bc"), [b"a", b"bc"], ["", "a"], "", True),
        # complete at the same character: the longer one
        (("bc", "abc"), [b"ab", b"c"], ["", ""], "", True),
        # what is held comes out at the end
        (("abc",), [b"d", b"ab"], ["d", ""], "ab", False),
        # half a character waits; never completed it becomes U+FFFD
        ((), [b"a", LEAD, TAIL, b"b"], ["a", "", "猫", "b"], "", False),
        ((), [b"a", LEAD], ["a", ""], "\N{REPLACEMENT CHARACTER}", False),
        (("猫",), [b"a", LEAD, TAIL], ["a", "", ""], "", True),
    ],
)
def test_stop_strings(stop: tuple[str, ...], pieces: list[bytes], shown: list[str], rest: str, stopped: bool) -> None:
    text = OutputText(PieceTokenizer(), stop)
    assert push_all(text, *pieces) == shown
    assert text.finish() == rest
    assert text.stopped is stopped
    assert text.shown == "".join(shown) + rest


def test_special_tokens_have_no_text() -> None:
    text = OutputText(PieceTokenizer())
    assert [text.push(IDS[b"a"]), text.push(EOS), text.push(IDS[b"b"])] == ["a", "", "b"]


letters = st.lists(st.sampled_from([b"a", b"b", b"c", b"ab", b"bc", b"cab", b"d"]), max_size=12)
stops = st.lists(st.text(alphabet="abcd", min_size=1, max_size=4), max_size=3)


def stopped_text(whole: str, stop: list[str]) -> str:
    """By definition: character by character, the first moment at which a stop string is complete."""
    for end in range(1, len(whole) + 1):
        starts = [end - len(s) for s in stop if whole[:end].endswith(s)]
        if starts:
            return whole[: min(starts)]
    return whole


@given(pieces=letters, stop=stops)
def test_the_text_depends_on_the_characters_alone(pieces: list[bytes], stop: list[str]) -> None:
    text = OutputText(PieceTokenizer(), tuple(stop))
    shown = "".join(push_all(text, *pieces)) + text.finish()
    assert shown == stopped_text(b"".join(pieces).decode(), stop)


@given(pieces=letters, stop=stops)
def test_what_is_held_back_is_exactly_what_may_begin_a_stop_string(pieces: list[bytes], stop: list[str]) -> None:
    text = OutputText(PieceTokenizer(), tuple(stop))
    pushed = ""
    for piece in pieces:
        text.push(IDS[piece])
        pushed += piece.decode()
        if text.stopped:
            break
        assert pushed.startswith(text.shown)
        beginnings = [n for s in stop for n in range(1, len(s)) if pushed.endswith(s[:n])]
        assert len(pushed) - len(text.shown) == max(beginnings, default=0)
