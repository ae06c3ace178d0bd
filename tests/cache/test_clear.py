"""Clearing one namespace: everything of it goes, in all tiers, and nothing of any other."""

from __future__ import annotations

import random

import pytest

from kvledger.cache import MissReason
from kvledger.cache.disk import DiskTier
from kvledger.cache.events import EventLog, RemovalReason, Removed
from kvledger.cache.tiers import LowerTier
from tests.cache.world import World, space

A, B = space("a"), space("b")


def test_only_the_namespace_is_cleared_and_the_removal_is_told():
    world = World(options={"events": EventLog()})
    world.serve(A, range(12))
    world.serve(A, [*range(8), 50, 51, 52, 53, 54])
    world.serve(B, range(12))
    world.cache.clear(A)
    world.check()
    removed = world.cache.events.since(0)[-1]
    assert isinstance(removed, Removed)
    assert (len(removed.digests), removed.reason) == (4, RemovalReason.CLEARED)
    assert world.serve(B, range(12)).reused == 11
    lease = world.serve(A, range(12))
    assert (lease.reused, lease.miss.reason) == (0, MissReason.COLD_START)  # not even a trace of what there was


def test_clearing_what_never_was_changes_nothing():
    world = World(options={"events": EventLog()})
    world.serve(A, range(12))
    world.cache.clear(B)
    world.check()
    assert world.cache.events.last == 1
    assert world.serve(A, range(12)).reused == 11


def test_a_running_lease_goes_on_but_what_it_writes_is_its_own():
    world = World()
    other = world.admit(B, range(12))
    running = world.admit(A, range(12))
    world.write(running, 6)
    world.cache.clear(A)
    world.check()
    assert world.admit(A, range(12)).lease.reused == 0  # and it does not wait for the one that was there before
    world.write(running, 6)
    world.write(other, 12)
    world.check()
    for sequence in world.running.copy():
        world.finish(sequence)
    world.check()
    assert world.serve(B, range(12)).reused == 11


@pytest.mark.parametrize("seed", range(20))
def test_clearing_in_the_middle_of_traffic_breaks_nothing(seed):
    rng = random.Random(seed)
    world = World(num_blocks=12, options={"events": EventLog(), "tenant_bytes": 2000})
    for _ in range(60):
        action = rng.random()
        if action < 0.4 and len(world.running) < 3:
            world.admit(rng.choice((A, B)), [rng.randrange(2) for _ in range(rng.randint(1, 12))])
        elif action < 0.7 and world.running:
            world.write(rng.choice(world.running), rng.randint(1, 6))
        elif action < 0.9 and world.running:
            world.finish(rng.choice(world.running))
        elif action >= 0.95:
            world.cache.clear(rng.choice((A, B, None)))
        world.check()


def test_the_disk_is_cleared_too(tmp_path):
    def lower() -> LowerTier:
        return LowerTier(
            DiskTier(tmp_path, "print", limit_bytes=1 << 20),
            read_block=lambda block: repr(world.kv[block]).encode(),
            write_block=lambda block, payload: None,
        )

    world = World(num_blocks=96, options={"lower": lower()})
    for namespace in (A, B):
        for start in (0, 100):
            world.serve(namespace, range(start, start + 12))
            world.cache.persist(100)
    files = set(world.cache.lower.tier.files())
    assert len(files) == 4
    world.cache.clear(A)
    kept = set(world.cache.lower.tier.files())
    assert len(kept) == 2
    assert {path for path in files if path.exists()} == kept
    tier = world.cache.lower.tier
    assert tier.find(A.digest(), b"".join(i.to_bytes(4, "little") for i in range(12)), 16)[1] == 0
    assert tier.find(B.digest(), b"".join(i.to_bytes(4, "little") for i in range(12)), 16)[1] == 48
