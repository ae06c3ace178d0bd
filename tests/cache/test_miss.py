from __future__ import annotations

import pytest

from kvledger.cache import Miss, MissReason
from kvledger.cache.digest import token_bytes
from kvledger.cache.events import RemovalReason
from kvledger.cache.miss import Graves, segment_path
from kvledger.text.prompt import Segment
from tests.cache.world import World, space

SEGMENTS = (Segment(0, 5, "template"), Segment(5, 9, "messages[0].content"), Segment(9, 12, "messages[1].content"))


@pytest.mark.parametrize(
    ("position", "path"),
    [(0, "template"), (4, "template"), (5, "messages[0].content"), (11, "messages[1].content"), (12, None)],
)
def test_segment_path(position, path):
    assert segment_path(SEGMENTS, position) == path
    assert segment_path((), position) is None


def test_cold_start_names_the_place():
    assert World().serve(space(), [1, 2, 3], segments=(Segment(0, 3, "template"),)).miss == Miss(
        MissReason.COLD_START, 0, "template"
    )


def test_what_goes_on_after_a_cached_prompt_is_new():
    world = World()
    world.serve(space(), [1] * 6)
    assert world.serve(space(), [1] * 6 + [2] * 6, segments=SEGMENTS).miss == Miss(
        MissReason.COLD_START, 6, "messages[0].content"
    )


@pytest.mark.parametrize("position", [1, 3, 4, 5, 10])
def test_prefix_changed_names_the_first_token_that_differs(position):
    world = World()
    earlier = list(range(100, 112))
    world.serve(space(), earlier)
    changed = [*earlier[:position], 7, *earlier[position + 1 :]]
    assert world.serve(space(), changed, segments=SEGMENTS).miss == Miss(
        MissReason.PREFIX_CHANGED,
        position,
        segment_path(SEGMENTS, position),
        token=7,
        earlier_token=100 + position,
    )


def test_no_miss_when_all_but_the_last_token_is_reused():
    world = World()
    world.serve(space(), list(range(9)))
    assert world.serve(space(), list(range(9))).miss is None


def test_expired():
    for wait in (300.5, 900.0):  # still there, and freed since
        world = World()
        world.serve(space(), list(range(9)))
        world.clock.advance(wait)
        assert world.serve(space(), list(range(9))).miss == Miss(MissReason.EXPIRED, 0)


@pytest.mark.parametrize("length", [6, 8, 9, 12])
def test_evicted_whole_or_in_part(length):
    world = World(num_blocks=5)
    world.serve(space(), [1] * length)
    world.serve(space(), [2] * (20 - 4))  # leaves one block
    lease = world.serve(space(), [1] * length)
    assert lease.miss == Miss(MissReason.EVICTED, lease.reused)
    assert lease.reused == 4


def test_evicted_down_to_the_root():
    world = World(num_blocks=4)
    world.serve(space(), [1] * 8)
    world.serve(space(), [2] * 16)
    assert world.serve(space(), [1] * 8).miss == Miss(MissReason.EVICTED, 0)


def test_a_block_that_reuses_a_number_inherits_no_history():
    """What was below an evicted block must not be reported below another block that has its number now."""
    world = World(num_blocks=4)
    world.serve(space(), [1] * 4 + [9] * 4)
    world.serve(space(), [2] * 16)
    for first in range(3, 7):
        lease = world.serve(space(), [first] * 4)
        lease = world.serve(space(), [first] * 4 + [9] * 4)
        assert lease.miss == Miss(MissReason.COLD_START, 4)


def test_below_minimum_says_the_minimum():
    assert World().serve(space(), [1]).miss == Miss(MissReason.BELOW_MINIMUM, 0, minimum=2)


@pytest.mark.parametrize(
    ("other", "differs"),
    [
        ({"weights": "w2"}, ("weights",)),
        ({"tokenizer": "t2"}, ("tokenizer",)),
        ({"adapter": "x"}, ("adapter",)),
        ({"layout": "l2", "adapter": "x"}, ("adapter", "layout")),
    ],
)
def test_other_namespace_says_which_part_differs(other, differs):
    world = World()
    world.serve(space("a", **other), [1] * 9)
    assert world.serve(space("a"), [1] * 9).miss == Miss(MissReason.OTHER_NAMESPACE, 0, differs=differs)
    assert world.serve(space("a", weights="w9"), [2] * 9).miss == Miss(MissReason.COLD_START, 0)


def test_p06_another_tenants_prompt_looks_like_one_that_never_was():
    world = World()
    world.serve(space("a"), [1] * 9)
    theirs, unseen = world.serve(space("b"), [1] * 9), World().serve(space("b"), [1] * 9)
    assert (theirs.reused, theirs.miss) == (unseen.reused, unseen.miss) == (0, Miss(MissReason.COLD_START, 0))
    assert world.serve(space("b"), [1] * 9).reused == 8


def test_not_yet_written():
    world = World()
    first = world.admit(space(), [1] * 4)
    assert world.admit(space(), [1] * 3 + [2]).lease.miss == Miss(MissReason.NOT_YET_WRITTEN, 0)
    world.write(first, 2)
    assert world.admit(space(), [1] * 3 + [2]).lease.miss == Miss(MissReason.NOT_YET_WRITTEN, 2)


def test_disabled():
    assert World(options={"enabled": False}).serve(space(), [1] * 9).miss == Miss(MissReason.DISABLED, 0)
    assert World().serve(space(), [1] * 9, use_cache=False).miss == Miss(MissReason.DISABLED, 0)


def test_p31_a_prompt_below_the_minimum_is_told_the_number():
    miss = World().serve(space(), [1]).miss
    assert (miss.reason, miss.minimum) == (MissReason.BELOW_MINIMUM, 2)
    assert World().serve(space(), [1, 2]).miss.reason is MissReason.COLD_START


def test_graves_are_bounded_and_the_newest_are_kept():
    graves = Graves(10)
    blocks = [token_bytes([number, 0]) for number in range(100)]
    for block in blocks:
        graves.dig(0, block, RemovalReason.EVICTED)
    found = [graves.find(0, block, 0) is not None for block in blocks]
    assert all(found[-10:])
    assert sum(found) <= 20
    graves.level([0])
    assert graves.find(0, blocks[-1], 0) is None
