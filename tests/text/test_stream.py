"""Streaming: whole characters only, and nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvledger.text.stream import TextStream
from tests.text.vocabularies import byte_level

TINY = byte_level()
ids = st.lists(st.integers(0, TINY.vocab_size + 2))
text = st.text(st.characters(exclude_categories=("Cs",)))


def stream(tokens) -> list[str]:
    one = TextStream(TINY)
    return [*map(one.push, tokens), one.finish()]


@given(text)
def test_text_comes_through_in_whole_characters(text):
    pieces = stream(TINY.encode(text))
    assert "".join(pieces) == text
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(ids)
def test_any_tokens_give_the_text_of_all_but_the_special_ones(tokens):
    assert "".join(stream(tokens)) == TINY.decode(token for token in tokens if token not in TINY.special_ids)


def test_a_character_waits_for_its_last_byte():
    first, *middle, last = TINY.encode("🙂")
    one = TextStream(TINY)
    assert [one.push(token) for token in (first, *middle)] == [""] * (1 + len(middle))
    assert one.push(last) == "🙂"
    assert one.finish() == ""


def test_a_character_that_never_ends_is_replaced_at_the_end():
    tokens = TINY.encode("a🙂")[:-1]
    assert stream(tokens) == ["a", *[""] * (len(tokens) - 1), "\ufffd"]


def test_special_tokens_show_as_nothing():
    assert stream([*TINY.encode("a"), 2, *TINY.encode("b")]) == ["a", "", "b", ""]
