"""Origins through string operations, against the plainest model of them: one origin per character."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.text.traced import TEMPLATE, Traced, concat, trace

letters = st.text(st.sampled_from(" \n\tab"), max_size=8)
parts = st.lists(st.tuples(letters, st.sampled_from(["p", "q", None])), max_size=4)


def traced(parts) -> Traced:
    return concat(Traced(text, origin) for text, origin in parts)


def by_letter(text: str) -> list[tuple[str, str | None]]:
    if not isinstance(text, Traced):
        return [(letter, None) for letter in text]
    return [
        (letter, origin) for start, end, origin in text.spans() for letter in str.__getitem__(text, slice(start, end))
    ]


@given(parts)
def test_building(parts):
    text = traced(parts)
    assert text == "".join(part for part, _ in parts)
    assert by_letter(text) == [(letter, origin) for part, origin in parts for letter in part]
    assert all(a[2] != b[2] for a, b in zip(list(text.spans()), list(text.spans())[1:], strict=False))


@given(parts, st.integers(-10, 40), st.integers(-10, 40))
def test_slices(parts, start, end):
    text = traced(parts)
    for key in (slice(start, end), slice(start, None), slice(None, end), slice(None)):
        assert text[key] == str(text)[key]
        assert by_letter(text[key]) == by_letter(text)[key]
    if -len(text) <= start < len(text):
        assert by_letter(text[start]) == [by_letter(text)[start]]
    else:
        with pytest.raises(IndexError):
            text[start]
    assert text[::-1] == "".join(reversed(text))


@given(parts, st.sampled_from([None, "a", " \n", ""]))
def test_trimming(parts, chars):
    text = traced(parts)
    for name in ("strip", "lstrip", "rstrip"):
        trimmed = getattr(text, name)(chars)
        expected = getattr(str.__str__(text), name)(chars)
        assert trimmed == expected
        start = len(text) - len(str.__str__(text).lstrip(chars)) if name != "rstrip" else 0
        assert by_letter(trimmed) == by_letter(text)[start : start + len(expected)] or not expected


@given(parts, st.sampled_from([None, "a", "ab", "\n"]), st.integers(-1, 3))
def test_splitting_and_joining(parts, sep, limit):
    text = traced(parts)
    plain = "".join(text)
    for name in ("split", "rsplit"):
        pieces = getattr(text, name)(sep, limit)
        assert pieces == getattr(plain, name)(sep, limit)
        if sep is not None:
            joined = Traced(sep, "sep").join(pieces)
            assert joined == plain
            kept = [(got, was) for got, was in zip(by_letter(joined), by_letter(text), strict=True) if got[1] != "sep"]
            assert all(got == was for got, was in kept)
        else:
            assert [pair for piece in pieces for pair in by_letter(piece) if not pair[0].isspace()] == [
                pair for pair in by_letter(text) if not pair[0].isspace()
            ]
    for keepends in (False, True):
        assert text.splitlines(keepends) == plain.splitlines(keepends)
    assert [pair for line in text.splitlines(True) for pair in by_letter(line)] == by_letter(text)


@given(parts, st.sampled_from(["a", "ab", "\n"]))
def test_partitions_and_affixes(parts, sep):
    text = traced(parts)
    plain = "".join(text)
    for name in ("partition", "rpartition"):
        three = getattr(text, name)(sep)
        assert three == getattr(plain, name)(sep)
        assert [pair for part in three for pair in by_letter(part)] == by_letter(text)
    assert by_letter(text.removeprefix(sep)) == by_letter(text)[len(sep) if plain.startswith(sep) else 0 :]
    assert text.removesuffix(sep) == plain.removesuffix(sep)


@given(parts, st.sampled_from(["a", "ab", ""]), st.sampled_from(["", "x", "yy"]), st.integers(-1, 2))
def test_replacing(parts, old, new, count):
    text = traced(parts)
    replaced = text.replace(old, Traced(new, "new"), count)
    assert replaced == "".join(text).replace(old, new, count)
    if old:
        assert by_letter(replaced) == replaced_letters(by_letter(text), old, new, count)


def replaced_letters(letters, old, new, count):
    """Replace in a list of (letter, origin), from the left."""
    plain = "".join(letter for letter, _ in letters)
    at = plain.find(old)
    if at < 0 or count == 0:
        return letters
    rest = replaced_letters(letters[at + len(old) :], old, new, count - 1)
    return [*letters[:at], *((letter, "new") for letter in new), *rest]


def test_adding():
    text = "plain" + Traced("mine", "p") + "plain" + Traced("yours", "q")
    assert [(text[start:end], origin) for start, end, origin in text.spans()] == [
        ("plain", None),
        ("mine", "p"),
        ("plain", None),
        ("yours", "q"),
    ]


def test_other_changes_keep_one_origin_and_lose_several():
    one, two = Traced("aß", "p"), traced([("a", "p"), ("b", "q")])
    for name in ("upper", "lower", "capitalize", "title"):
        assert getattr(one, name)().origin == "p"
        assert getattr(two, name)().origin is None
        assert getattr(one, name)() == getattr("aß", name)()
    assert one.center(10) == "aß".center(10)
    assert by_letter(one.center(4))[1][1] is None


def test_formatting_plain_fields():
    text = Traced("<{}|{name}|{0}{{}}>", TEMPLATE).format(Traced("x", "p"), name=7)
    assert text == "<x|7|x{}>"
    assert by_letter(text)[1] == ("x", "p")
    assert by_letter(text)[0] == ("<", TEMPLATE)
    assert by_letter(text)[3] == ("7", None)
    for field in ("{:>99}", "{0.x}", "{0[a]}", "{!r}"):
        with pytest.raises(ValueError, match="is not a plain one"):
            Traced(field).format("x")


def test_tracing_json():
    seen: list[str] = []
    value = trace({"a": ["b", 1, None, {"c": True}], "d": 2.5}, "tools[0]", seen.append)
    assert value == {"a": ["b", 1, None, {"c": True}], "d": 2.5}
    assert sorted(seen) == ["a", "b", "c", "d"]
    assert {key.origin for key in value} == {value["a"][0].origin} == {"tools[0]"}
