"""Prompts check themselves, and two of them can be compared."""

from __future__ import annotations

import pytest

from kvledger.text.prompt import Divergence, Mark, Prompt, Segment, first_divergence


@pytest.mark.parametrize(
    "segments",
    [
        (Segment(0, 2, "a"),),
        (Segment(1, 3, "a"),),
        (Segment(0, 2, "a"), Segment(1, 3, "b")),
        (Segment(0, 2, "a"), Segment(2, 2, "b"), Segment(2, 3, "c")),
        (Segment(0, 4, "a"),),
    ],
)
def test_segments_must_cover_the_tokens_in_order(segments):
    with pytest.raises(ValueError, match="segment"):
        Prompt((1, 2, 3), segments)


@pytest.mark.parametrize("position", [0, -1, 4])
def test_marks_lie_inside(position):
    with pytest.raises(ValueError, match="mark"):
        Prompt((1, 2, 3), marks=(Mark(position),))


PROMPT = Prompt((1, 2, 3, 4), (Segment(0, 1, "template"), Segment(1, 4, "messages[0].content")))


def test_segment_at():
    assert PROMPT.segment_at(0) == Segment(0, 1, "template")
    assert PROMPT.segment_at(3) == Segment(1, 4, "messages[0].content")
    assert PROMPT.segment_at(4) is None


@pytest.mark.parametrize(
    ("earlier", "expected"),
    [
        ((), None),
        ((1, 2), None),
        ((1, 2, 3, 4), None),
        ((9, 2), Divergence(0, "template")),
        ((1, 2, 9, 4, 5), Divergence(2, "messages[0].content")),
        ((1, 2, 3, 4, 5), Divergence(4, None)),
    ],
)
def test_first_divergence(earlier, expected):
    assert first_divergence(earlier, PROMPT) == expected
