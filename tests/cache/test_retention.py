from __future__ import annotations

import pytest

from kvledger.cache import MissReason, OverQuota
from kvledger.cache.events import RemovalReason
from kvledger.cache.retention import BOOKKEEPING_BYTES, Expiry, blocks_within
from kvledger.text.prompt import Mark
from tests.cache.world import Sequence_, World, space

BLOCK = 64 + BOOKKEEPING_BYTES


def prompt(name: int, length: int = 8) -> list[int]:
    return [name] * length


def kept(world: World, *names: int, tenant: str = "") -> set[int]:
    return {name for name in names if world.possible(space(tenant), prompt(name, 9))}


@pytest.mark.parametrize(("wait", "reused"), [(299.9, 7), (300.0, 0)])
def test_an_entry_lives_for_its_time_without_use(wait, reused):
    world = World()
    world.serve(space(), prompt(1))
    world.clock.advance(wait)
    lease = world.serve(space(), prompt(1))
    assert lease.reused == reused
    assert lease.miss is None if reused else lease.miss.reason is MissReason.EXPIRED


def test_a_hit_refreshes_the_time_to_live():
    world = World()
    world.serve(space(), prompt(1))
    for _ in range(4):
        world.clock.advance(200)
        assert world.serve(space(), prompt(1)).reused == 7


def test_a_running_lease_does_not_expire():
    world = World()
    sequence = world.admit(space(), prompt(1))
    world.write(sequence, 8)
    world.clock.advance(1000)
    world.check()
    assert world.possible(space(), prompt(1, 9)) == 8
    world.finish(sequence)
    world.clock.advance(299)
    assert world.possible(space(), prompt(1, 9)) == 8


def test_only_the_part_that_was_hit_is_refreshed():
    world = World()
    world.serve(space(), prompt(1, 16))
    world.clock.advance(200)
    world.serve(space(), prompt(1, 8))
    world.clock.advance(200)
    assert world.possible(space(), prompt(1, 17)) == 8


def test_no_time_to_live_is_for_ever():
    world = World(options={"ttl": None})
    world.serve(space(), prompt(1))
    world.clock.advance(1e9)
    assert world.serve(space(), prompt(1)).reused == 7


def test_expired_blocks_are_freed_and_counted_without_pressure():
    world = World()
    world.serve(space(), prompt(1))
    world.serve(space(), prompt(2))
    world.clock.advance(301)
    world.serve(space(), [9])
    assert world.cache.pool.idle == 1
    assert world.cache.counters.removed_blocks[RemovalReason.EXPIRED] == 4


def test_a_mark_gives_its_blocks_a_longer_life():
    world = World()
    world.serve(space(), prompt(1, 16), marks=[Mark(9, 3600.0)])
    world.clock.advance(3000)
    assert world.possible(space(), prompt(1, 17)) == 8
    assert world.serve(space(), prompt(1, 16)).reused == 8  # and a plain hit renews it
    world.clock.advance(3000)
    assert world.possible(space(), prompt(1, 17)) == 8


def test_a_pin_goes_last_but_goes():
    world = World(num_blocks=8, options={"pin_share": 0.5})
    world.serve(space(), prompt(1), marks=[Mark(8)])
    for name in (2, 3, 4, 5):
        world.serve(space(), prompt(name))
    assert kept(world, 1, 2, 3, 4, 5) == {1, 3, 4, 5}
    assert isinstance(world.admit(space(), prompt(9, 32)), Sequence_)
    assert kept(world, 1) == set()
    assert world.cache.pool.num_pinned == 0
    world.check()


def test_pins_stay_within_their_budget():
    world = World(num_blocks=8, options={"pin_share": 0.25})
    world.serve(space(), prompt(1, 16), marks=[Mark(16)])
    world.serve(space(), prompt(2), marks=[Mark(8)])
    assert world.cache.pool.num_pinned == 2
    path = world.cache.trie.walk(world.cache.trie.root(space()), world_bytes(prompt(1, 16)), 4)
    assert [world.cache.pool.pinned[block] for block in path] == [1, 1, 0, 0]  # nearest to the root first


def test_an_expired_pin_is_gone():
    world = World(num_blocks=8, options={"pin_share": 1.0})
    world.serve(space(), prompt(1), marks=[Mark(8)])
    world.clock.advance(301)
    world.serve(space(), [9])
    assert world.cache.pool.num_pinned == 0


def test_a_tenant_over_its_quota_gives_up_its_own_first():
    world = World(num_blocks=16, options={"tenant_bytes": 4 * BLOCK})
    world.serve(space("b"), prompt(7))
    for name in (1, 2, 3):
        world.serve(space("a"), prompt(name))
    assert kept(world, 1, 2, 3, tenant="a") == {2, 3}
    assert kept(world, 7, tenant="b") == {7}
    assert world.cache.pool.free == 16 - 4 - 2


def test_a_quota_bounds_what_runs_as_well():
    world = World(num_blocks=16, options={"tenant_bytes": 4 * BLOCK})
    first = world.admit(space("a"), prompt(1, 12))
    assert world.admit(space("a"), prompt(2, 8)) == OverQuota()
    assert world.cache.extend(first.lease, 16)
    assert not world.cache.extend(first.lease, 17)
    assert world.cache.is_over_quota(first.lease, 17)
    assert isinstance(world.admit(space("b"), prompt(2, 8)), Sequence_)
    assert world.cache.fits(16)
    assert not world.cache.fits(17)
    assert world.cache.capacity == 16
    world.check()


def test_a_full_pool_is_told_from_a_full_quota():
    world = World(num_blocks=6, options={"tenant_bytes": 4 * BLOCK})
    first = world.admit(space("a"), prompt(1, 16))
    other = world.admit(space("b"), prompt(1, 8))
    assert world.admit(space("b"), prompt(2, 4)) is None
    assert world.admit(space("a"), prompt(2, 4), use_cache=False) == OverQuota()
    assert not world.cache.extend(other.lease, 9)
    assert not world.cache.is_over_quota(other.lease, 9)
    assert world.cache.is_over_quota(first.lease, 17)
    world.check()


def test_p17_the_byte_limit_counts_the_books_and_holds_for_every_entry():
    assert blocks_within(10 * BLOCK, 64) == blocks_within(11 * BLOCK - 1, 64) == 10
    world = World(num_blocks=16, options={"limit_bytes": 5 * BLOCK})
    assert not world.cache.fits(21)
    assert world.admit(space(), prompt(1, 21)) is None
    for name in range(9):
        world.serve(space(), prompt(name, 20 if name % 2 else 3))
        held = world.cache.pool.num_blocks - world.cache.pool.free
        assert held * BLOCK <= 5 * BLOCK
    world.check()


def test_p15_dead_blocks_go_before_cached_ones():
    """An open block that a longer one covers is freed at once, and an expired one before anything that lives."""
    world = World(num_blocks=6)
    world.serve(space(), [1, 2])
    world.serve(space(), [1, 2, 3, 4, 5])
    assert world.cache.pool.idle == 2
    world.clock.advance(250)
    world.serve(space(), prompt(7, 12))
    world.clock.advance(100)
    world.serve(space(), prompt(8, 12))
    assert kept(world, 7, 8) == {7, 8}
    assert world.possible(space(), [1, 2, 3]) == 0


def test_expiry_hands_out_each_entry_once_and_in_time():
    expiry = Expiry()
    for block, deadline in enumerate([10.0, 10.4, 12.0, float("inf")]):
        expiry.add(deadline, block)
    assert expiry.take_due(9.9) == []
    assert expiry.take_due(10.4) == [0]  # 10.4 waits for the whole second
    assert expiry.take_due(11.0) == [1]
    assert expiry.take_due(1e9) == [2]
    assert expiry.take_due(1e9) == []


def world_bytes(tokens: list[int]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in tokens)
