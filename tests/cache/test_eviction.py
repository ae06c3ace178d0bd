from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.cache.eviction import LFU, LRU, Belady, Candidate, CostAware, EvictionQueue
from kvledger.cache.pool import BlockPool
from tests.cache.world import World, space


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 5), st.integers(0, 5))), max_size=80))
def test_the_queue_is_in_order(steps):
    """None takes the least out; a pair goes in."""
    queue = EvictionQueue(lambda candidate: True)
    expected: list[Candidate] = []
    for number, step in enumerate(steps):
        if step is not None:
            candidate = Candidate(float(step[0]), step[1], number)
            queue.push(candidate)
            expected.append(candidate)
            continue
        least = min(expected, default=None)
        assert queue.first() == queue.pop() == least
        if least is not None:
            expected.remove(least)
    assert sorted(queue) == sorted(expected)


def test_void_candidates_do_not_pile_up():
    live = {1, 2, 3}
    queue = EvictionQueue(lambda candidate: candidate.tick in live)
    rng = random.Random(0)
    for tick in range(100_000):
        queue.push(Candidate(rng.random(), tick, 0))
    assert len(queue) <= 1024
    assert {candidate.tick for candidate in queue} >= live


def pool_with(**arrays: list[int]) -> BlockPool:
    pool = BlockPool(4)
    for name, values in arrays.items():
        for block, value in enumerate(values):
            getattr(pool, name)[block] = value
    return pool


@pytest.mark.parametrize(
    ("policy", "arrays", "expected"),
    [
        (LRU(), {"hits": [9, 0, 5]}, [0.0, 0.0, 0.0]),
        (LFU(), {"hits": [9, 0, 5]}, [9.0, 0.0, 5.0]),
        # 16 tokens at 0, 16 at 992 and 4 at 992, twice used: tokens x (1 + middle / 1000) x uses
        (
            CostAware(1000.0),
            {"sizes": [16, 16, 4], "positions": [0, 992, 992], "hits": [0, 0, 1]},
            [16 * 1.008, 16 * 2.0, 2 * 4 * 1.994],
        ),
        (Belady({0: 7, 2: 3}), {}, [-7.0, float("-inf"), -3.0]),
    ],
)
def test_worths_by_hand(policy, arrays, expected):
    pool = pool_with(**arrays)
    assert [policy.priority(block, pool) for block in range(3)] == pytest.approx(expected)


def test_cost_aware_lets_old_worth_fade():
    pool = pool_with(sizes=[16], hits=[3])
    before = CostAware(1000.0).priority(0, pool)
    pool.floor = 50.0
    assert CostAware(1000.0).priority(0, pool) == pytest.approx(before + 50.0)


def prompt(name: int, length: int = 8) -> list[int]:
    return [name] * length


def cached(world: World) -> set[int]:
    """The names of prompts of which anything is cached."""
    return {name for name in range(10) if world.possible(space(), prompt(name))}


def test_p16_a_hit_refreshes_recency():
    world = World(num_blocks=4)
    world.serve(space(), prompt(1))
    world.serve(space(), prompt(2))
    assert world.serve(space(), prompt(1)).reused == 7
    world.serve(space(), prompt(3))
    assert cached(world) == {1, 3}


def test_p16_a_prefix_of_one_token_matches():
    world = World()
    world.serve(space(), [5])
    assert world.serve(space(), [5, 6]).reused == 1


def test_lru_takes_the_tail_first():
    world = World(num_blocks=5)
    world.serve(space(), prompt(1, 16))
    world.serve(space(), prompt(2, 8))
    assert world.possible(space(), prompt(1, 17)) == 12
    world.serve(space(), prompt(3, 8))
    assert world.possible(space(), prompt(1, 17)) == 4


def test_lfu_keeps_what_is_hit_often():
    world = World(num_blocks=4, options={"policy": LFU()})
    for _ in range(3):
        world.serve(space(), prompt(1))
    world.serve(space(), prompt(2))
    world.serve(space(), prompt(3))
    assert cached(world) == {1, 3}


def test_cost_aware_keeps_what_is_dear():
    """The later blocks of a long prompt cost more than those of a short one, though they were used earlier."""
    world = World(num_blocks=8, options={"policy": CostAware(4.0)})
    world.serve(space(), prompt(1, 20))
    world.serve(space(), prompt(2, 12))
    world.serve(space(), prompt(3, 4))
    assert world.possible(space(), prompt(1, 21)) == 20
    assert world.possible(space(), prompt(2, 13)) == 8


def replay(trace: list[int], policy, num_blocks: int) -> int:
    """Hits of one-block prompts; Belady is told the future before each release."""
    world = World(num_blocks, block_size=2, options={"policy": policy})
    hits = 0
    for moment, name in enumerate(trace):
        sequence = world.admit(space(), [name, 0, 0])
        hits += sequence.lease.reused == 2
        world.write(sequence, 2)
        if isinstance(policy, Belady):
            upcoming = (later for later in range(moment + 1, len(trace)) if trace[later] == name)
            policy.next_use[sequence.lease.table[0]] = next(upcoming, float("inf"))
        world.finish(sequence)
    return hits


def optimum(trace: list[int], capacity: int) -> int:
    """The most hits any eviction order can have, by trying them all; the newcomer needs one place."""
    states = {frozenset[int](): 0}
    for name in trace:
        following: dict[frozenset[int], int] = {}
        for state, hits in states.items():
            hit = name in state
            kept = [state | {name}] if hit or len(state) < capacity else [state - {out} | {name} for out in state]
            for each in kept:
                following[each] = max(following.get(each, 0), hits + hit)
        states = following
    return max(states.values())


def test_belady_is_the_optimum_and_lru_is_not():
    rng = random.Random(3)
    better = 0
    for _ in range(20):
        trace = [rng.randrange(5) for _ in range(24)]
        best = replay(trace, Belady({}), num_blocks=4)  # 3 places, and one block for the token that is computed
        assert best == optimum(trace, 3)
        lru = replay(trace, LRU(), num_blocks=4)
        assert lru <= best
        better += lru < best
    assert better


@pytest.mark.parametrize("policy", [LRU(), LFU(), CostAware(100.0), Belady({})])
def test_p30_at_infinite_capacity_every_policy_reuses_the_same(policy):
    rng = random.Random(1)
    world = World(num_blocks=400, options={"policy": policy, "ttl": None})
    turns = [[rng.randrange(3) for _ in range(rng.randrange(1, 30))] for _ in range(40)]
    for tokens in turns:
        world.serve(space(), tokens)
    counters = world.cache.counters
    # For each prompt, the longest prefix (without its last token) that an earlier prompt begins with: over all tokens.
    expected = sum(
        max((common(earlier, tokens[:-1]) for earlier in turns[:number]), default=0)
        for number, tokens in enumerate(turns)
    )
    assert (counters.reused_tokens, counters.prompt_tokens) == (expected, sum(map(len, turns)))


def common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def test_children_go_before_parents_under_every_policy():
    for policy in (LRU(), LFU(), CostAware(10.0), Belady({})):
        rng = random.Random(5)
        world = World(num_blocks=12, options={"policy": policy})
        for _ in range(60):
            world.serve(space(), [rng.randrange(2) for _ in range(rng.randrange(1, 20))])
        for block, key in enumerate(world.cache.trie.keys):
            if key is not None:
                path = world.cache.trie.path_to(block)
                assert all(world.cache.trie.keys[each] is not None for each in path)
                assert all(world.cache.trie.parents[b] == a for a, b in pairwise(path))
