from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvledger.cache.digest import fields_digest
from kvledger.providers.prompt import Level, Part
from kvledger.providers.steps import PIECE, stops

ROOT = fields_digest("test")


def parts(*texts: str) -> list[Part]:
    levels = [Level.SYSTEM, *[Level.MESSAGES] * (len(texts) - 1)]
    return [
        Part(f"m[{i}]", level, "text", text, len(text), "r")
        for i, (level, text) in enumerate(zip(levels, texts, strict=True))
    ]


def shared(one: list[Part], other: list[Part], **settings: str) -> int:
    known = {stop.digest for stop in stops(ROOT, one)}
    at_level = {Level(level): text for level, text in settings.items()}
    return max((stop.tokens for stop in stops(ROOT, other, at_level) if stop.digest in known), default=0)


def test_where_a_prefix_may_end():
    found = [(stop.tokens, stop.part, stop.whole) for stop in stops(ROOT, parts("a" * 600, "b"))]
    assert found == [(256, 0, False), (512, 0, False), (600, 0, True), (601, 1, True)]


def test_a_setting_is_lost_from_its_level_on_inside_a_part_too():
    one = parts("s" * 600, "u" * 600)
    assert shared(one, one) == 1200
    assert shared(one, one, messages="changed") == 600
    assert shared(one, one, system="changed") == 0


@given(st.text("ab", max_size=3 * PIECE), st.text("ab", max_size=PIECE), st.text("ab", max_size=PIECE))
def test_two_texts_share_no_more_than_they_have_in_common_and_all_but_a_piece(start, one, other):
    common = 0
    for left, right in zip(start + one, start + other, strict=False):
        if left != right:
            break
        common += 1
    same = start + one == start + other
    found = shared(parts(start + one), parts(start + other))
    assert found <= common
    assert same or found > common - PIECE - 1
