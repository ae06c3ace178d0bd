"""Bugs that other engines had in public, as assertions about this cache. The names are those of our case list.

P03, P04 and P09 are in `test_digest`, P06 and P31 in `test_miss`, P07, P08 and P18 in `test_disk`, P15 and P17 in
`test_retention`, P16 and P30 in `test_eviction`, P19 in `test_events`.
"""

from __future__ import annotations

import random

import pytest

from kvledger.cache import Pending, trie
from kvledger.cache.digest import Digest
from kvledger.cache.events import EventLog
from kvledger.cache.pool import State
from tests.cache.world import Sequence_, World, space

A, B = space("a"), space("b")


def test_p01_equality_decides_and_not_a_hash(monkeypatch):
    """With a digest that is always the same, every lookup is still right (`World` checks every reused slot)."""
    monkeypatch.setattr(trie, "block_digest", lambda parent, tokens: Digest(bytes(32)))
    rng = random.Random(1)
    world = World(num_blocks=32, options={"events": EventLog()})
    world.replay_events = lambda: None
    for _ in range(200):
        sequence = world.admit(rng.choice([A, B]), [rng.randrange(2) for _ in range(rng.randrange(1, 24))])
        world.write(sequence, 99)
        world.finish(sequence)
    assert world.cache.counters.reused_tokens > 0


def test_p05_an_adapter_reloaded_under_its_name_starts_with_a_miss():
    """Its identity is a digest of its content, and the content is another."""
    world = World()
    world.serve(space("a", adapter="digest of the old weights"), [1] * 12)
    assert world.serve(space("a", adapter="digest of the new weights"), [1] * 12).reused == 0


def test_p10_what_is_not_written_is_not_matched():
    world = World()
    first = world.admit(A, [1] * 12)
    assert isinstance(world.admit(A, [1] * 12), Pending)
    assert world.possible(A, [1] * 13) == 0
    world.write(first, 5)
    assert world.possible(A, [1] * 13) == 5


@pytest.mark.parametrize("length", [15, 16])
def test_p11_a_request_does_not_evict_what_it_matches(length):
    world = World(num_blocks=4)
    world.serve(A, list(range(length)))
    assert world.serve(A, list(range(length))).reused == length - 1


def test_p12_no_live_table_names_a_free_block():
    """Two leases compute the same blocks at once; the first to commit wins, both keep what their tables name."""
    world = World(num_blocks=12)
    pair = [world.admit(A, [1] * 3) for _ in range(2)]
    for sequence in pair:
        sequence.tokens += [1] * 10
    for step in range(13):
        for sequence in pair:
            world.write(sequence, 1 + step % 3)
            world.check()
            assert all(world.cache.pool.states[block] != State.FREE for block in sequence.lease.table)
    world.finish(pair[0])
    world.check()
    assert world.serve(A, [1] * 13).reused == 12
    world.check_slots(pair[1])


@pytest.mark.parametrize(("length", "block_size", "reused"), [(12, 4, 11), (64, 16, 63), (1, 4, 0), (5, 4, 4)])
def test_p13_a_fully_cached_prompt_computes_exactly_one_token(length, block_size, reused):
    world = World(num_blocks=16, block_size=block_size)
    world.serve(A, list(range(length)))
    for _ in range(3):
        assert world.serve(A, list(range(length))).reused == reused


def test_p14_every_block_is_counted_once():
    """Shared by many, idle, running: the four counts always add up (`World.check`), and idle means evictable."""
    world = World(num_blocks=16)
    for tail in range(5):
        world.serve(A, [1] * 8 + [tail] * 4)
    pool = world.cache.pool
    assert (pool.free, pool.owned, pool.ready, pool.idle) == (16 - 7, 0, 0, 7)
    assert world.cache.extend(world.cache.acquire(B, [9]), 16 * 4)
    assert (pool.free, pool.owned, pool.ready, pool.idle) == (0, 16, 0, 0)


def test_p20_recomputing_after_preemption_is_no_hit():
    world = World(num_blocks=64)
    rng = random.Random(2)
    for _ in range(20):
        prompt = [rng.randrange(1 << 30) for _ in range(20)]
        sequence = world.admit(A, prompt)
        for _ in range(rng.randrange(4)):
            world.write(sequence, rng.randrange(1, 20))
            world.finish(sequence)
            sequence = world.admit(A, prompt, again=True)
        world.write(sequence, 20)
        world.finish(sequence)
    counters = world.cache.counters
    assert (counters.lookups, counters.prompt_tokens, counters.reused_tokens) == (20, 400, 0)


def test_p21_waiting_is_not_counted():
    world = World(num_blocks=4)
    first = world.admit(A, [1] * 12)
    for _ in range(5):
        assert isinstance(world.admit(A, [1] * 12), Pending)
        assert world.admit(B, [2] * 12) is None
    assert world.cache.counters.lookups == 1
    world.write(first, 12)
    world.finish(first)
    assert isinstance(world.admit(B, [2] * 12), Sequence_)
    assert world.cache.counters.lookups == 2
    assert world.cache.counters.misses.total() == 2


def test_p22_no_preemption_makes_more_reused_than_there_is():
    world = World(num_blocks=16)
    world.serve(A, [1] * 8)
    sequence = world.admit(A, [1] * 12)
    reused = sequence.lease.reused
    for step in range(6):
        world.write(sequence, 5)
        sequence.tokens.append(100 + step)
        world.finish(sequence)
        sequence = world.admit(A, sequence.tokens, again=True)
        assert sequence.lease.reused <= len(sequence.tokens) - 1
    counters = world.cache.counters
    assert reused == 8
    assert (counters.prompt_tokens, counters.reused_tokens) == (8 + 12, 8)
