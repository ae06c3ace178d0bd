from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import SimulationError
from kvledger.sim.capacity import Capacity, parse_tiers
from kvledger.sim.curve import Curve
from kvledger.sim.policies import POLICIES, next_uses
from kvledger.sim.replay import DISK, MISS, RAM, replay
from kvledger.sim.score import Ratio, score
from kvledger.sim.simulate import Setup, simulate
from kvledger.sim.trace import Trace
from tests.sim.traces import request_lists, timed_traces, trace_of

SIZES = (1, 2, 3, 5, 8, 13, 40)


def by_request(trace: Trace, found: np.ndarray) -> list[str]:
    """What was found where, a letter a block: miss, ram, disk."""
    letters = "".join("mrd"[kind] for kind in found)
    return [letters[start:end] for start, end in zip(trace.starts, trace.ends, strict=True)]


def hits_of(trace: Trace, **setup) -> list[int]:
    """Leading blocks that hit, by request."""
    return [text.replace("d", "r").count("r") for text in by_request(trace, simulate(trace, Setup(**setup)).found)]


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_a_match_is_a_contiguous_prefix_from_block_0():
    trace = trace_of([[1, 2, 3], [1, 2, 4], [9, 2, 3], [1, 2, 3]])
    assert hits_of(trace) == [0, 2, 0, 3]


def test_lru_takes_the_tail_of_the_oldest_first():
    trace = trace_of([[1, 2], [3], [4, 5], [3], [1, 2]])
    assert hits_of(trace, ram_blocks=4) == [0, 0, 0, 1, 1]  # block 2 had to go, block 1 did not
    assert hits_of(trace, ram_blocks=5) == [0, 0, 0, 1, 2]


def test_head_first_leaves_what_cannot_hit():
    """The same cache with room for one block less than is asked for: without its head, the rest of a prompt is lost."""
    trace = trace_of([[1, 2, 3], [4], [1, 2, 3]])
    assert hits_of(trace, ram_blocks=3) == [0, 0, 2]
    assert hits_of(trace, ram_blocks=3, order="head") == [0, 0, 0]


def test_a_prompt_longer_than_the_cache_is_cached_as_far_as_it_fits():
    assert hits_of(trace_of([[1, 2, 3, 4], [1, 2, 3, 4]]), ram_blocks=3) == [0, 3]


def test_fifo_forgets_what_is_used_lru_does_not():
    trace = trace_of([[1], [2], [1], [3], [1]])
    assert hits_of(trace, ram_blocks=2, policy="fifo") == [0, 0, 1, 0, 0]
    assert hits_of(trace, ram_blocks=2, policy="lru") == [0, 0, 1, 0, 1]


def test_belady_knows_what_comes():
    trace = trace_of([[1], [2], [3], [1], [2]])
    assert hits_of(trace, ram_blocks=2, policy="belady") == [0, 0, 0, 1, 0]
    assert hits_of(trace, ram_blocks=2, policy="lru") == [0, 0, 0, 0, 0]


def test_next_uses():
    assert next_uses(trace_of([[1, 2], [1], [3], [1, 2]])).tolist() == [1, 3, 3, np.inf, np.inf, np.inf]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_time_to_live_counts_from_the_last_use(policy):
    trace = trace_of([[1], [1], [1], [1]], times=[0, 9, 18, 28])
    assert hits_of(trace, ttl=10.0, policy=policy) == [0, 1, 1, 0]


def test_tiers_by_hand():
    trace = trace_of([[1, 2], [3, 4], [1, 2], [3, 4]])
    found = simulate(trace, Setup(ram_blocks=3, has_disk=True)).found
    assert by_request(trace, found) == ["mm", "mm", "rd", "rd"]


def test_a_disk_without_limit_loses_nothing():
    rng = random.Random(4)
    trace = trace_of([[rng.randrange(3) for _ in range(rng.randrange(1, 8))] for _ in range(60)])
    found = simulate(trace, Setup(ram_blocks=3, has_disk=True)).found
    needed = np.minimum(trace.lengths, 3)  # of a longer prompt, what fits into RAM is used
    expected = [min(hits, room) for hits, room in zip(hits_of(trace), needed, strict=True)]
    assert [text.count("r") + text.count("d") for text in by_request(trace, found)] == expected
    assert {RAM, DISK, MISS} == set(found.tolist())


def test_score_by_hand():
    trace = trace_of([[1, 2], [1, 2, 3], [5]])
    trace.sizes[1] = trace.sizes[3] = 1  # block 2 is partial
    trace.input_tokens[:] = [5, 9, 4]
    result = score(trace, simulate(trace, Setup()).found != MISS)
    assert result.whole.block == Ratio(2, 6)
    assert result.whole.full_block == Ratio(1, 4)
    assert result.whole.token == Ratio(5, 18)
    assert result.last_half.block == Ratio(2, 4)
    assert result.last_half.token == Ratio(5, 13)
    assert result.whole.block.value == pytest.approx(1 / 3)
    assert Ratio(0, 0).value is None


# -- the shortcut and the real cache ----------------------------------------------------------------------------------


@given(timed_traces(), st.sampled_from([None, 1.0, 5.0, 12.0]))
def test_the_curve_is_what_the_real_cache_does_at_every_size(trace, ttl):
    curve = Curve.of(trace, ttl=ttl)
    for size in SIZES:
        found = replay(trace, size, policy="lru", ttl=ttl)
        assert np.array_equal(found, simulate(trace, Setup(ram_blocks=size, ttl=ttl)).found)
        assert score(trace, found != MISS) == curve.at(size)
    assert curve.at(curve.end or 1) == curve.at(None)


@given(request_lists())
def test_head_first_is_a_plain_list_of_recent_blocks(requests):
    """The obvious way: a list of nodes, the most recent last, each request appended head first and cut at the front."""
    trace = trace_of(requests)
    for size in SIZES:
        recent: list[int] = []
        expected = []
        for start, end in zip(trace.starts, trace.ends, strict=True):
            path = trace.nodes[start:end].tolist()
            expected.append(next((i for i, node in enumerate(path) if node not in recent), len(path)))
            recent = ([node for node in recent if node not in path] + path)[-size:]
        assert hits_of(trace, ram_blocks=size, order="head") == expected


@given(timed_traces())
def test_p30_without_a_limit_every_policy_and_order_gives_the_same(trace):
    """kvcache-ai/Mooncake issue 4020: 0.51 and 0.553 for one trace at infinite size."""
    seen: set[tuple[int, ...]] = set()
    expected = []
    for start, end in zip(trace.starts, trace.ends, strict=True):
        prefixes = [tuple(trace.nodes[start : i + 1].tolist()) for i in range(start, end)]
        expected.append(sum(prefix in seen for prefix in prefixes))
        seen.update(prefixes)
    for policy in POLICIES:
        assert hits_of(trace, policy=policy) == expected
        assert hits_of(trace, policy=policy, ram_blocks=max(trace.num_nodes, 1)) == expected
    assert hits_of(trace, order="head") == expected
    assert hits_of(trace, has_disk=True) == expected


@given(request_lists(25))
def test_more_room_never_hurts_lru(requests):
    curve = Curve.of(trace_of(requests))
    hits = [curve.at(size).whole.block.hits for size in range(1, 30)]
    assert all(a <= b for a, b in pairwise(hits))


def test_belady_is_no_worse_than_the_others():
    rng = random.Random(2)
    trace = trace_of([[rng.randrange(12)] for _ in range(300)])  # single blocks, where it is the optimum
    best = sum(hits_of(trace, policy="belady", ram_blocks=4))
    assert all(best >= sum(hits_of(trace, policy=policy, ram_blocks=4)) for policy in POLICIES)


def test_the_sizes_of_a_curve_span_it():
    rng = random.Random(6)
    curve = Curve.of(trace_of([[rng.randrange(1000)] for _ in range(3000)]))
    sizes = curve.sizes(20)
    assert sizes[0] == 1
    assert sizes[-1] == curve.end
    assert len(sizes) <= 20
    assert Curve.of(trace_of([[1], [2]])).sizes(20) == [1]


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        ({"policy": "lruu"}, "did you mean lru"),
        ({"policy": "clock9"}, "known are lru, fifo, lfu, cost, belady"),
        ({"order": "heads"}, "did you mean head"),
        ({"router": "prefixes"}, "did you mean prefix"),
        ({"ttl": 0.0}, "above zero"),
        ({"ttl": -1.0}, "above zero"),
        ({"ttl": float("nan")}, "above zero"),
        ({"replicas": 0}, "1 to 10000"),
        ({"order": "head", "policy": "lfu"}, "leave one of them out"),
        ({"order": "head", "has_disk": True}, "leave one of them out"),
    ],
)
def test_impossible_setups(setup, says):
    with pytest.raises(SimulationError, match=says):
        Setup(**setup)


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "1.5", "", "many"])
def test_impossible_capacities(text):
    with pytest.raises(SimulationError, match="whole number above zero, or unlimited"):
        Capacity.parse(text)


def test_capacities():
    assert Capacity.parse("1000").blocks(512) == 1
    assert Capacity.parse("unlimited").blocks(512) is None
    with pytest.raises(SimulationError, match="give at least 512"):
        Capacity.parse("511").blocks(512)
    assert parse_tiers("ram:1024, disk:unlimited") == (Capacity(1024), Capacity(None))
    for wrong in ("ram:1", "disk:1,ram:2", "gpu:1,disk:2", "ram:1,disk:2,tape:3"):
        with pytest.raises(SimulationError, match="give ram and disk"):
            parse_tiers(wrong)
