"""The table of nodes and the stack at a size where they grow, against plain Python."""

from __future__ import annotations

import random

import numpy as np

from kvledger.sim.curve import Curve
from kvledger.sim.paths import Paths
from kvledger.sim.replay import MISS, replay
from kvledger.sim.score import score
from tests.sim.traces import trace_of


def conversations(count: int, seed: int) -> list[list[int]]:
    """Prompts behind a common block, most of which go on from an earlier one."""
    rng = random.Random(seed)
    open_ones: list[list[int]] = []
    requests: list[list[int]] = []
    fresh = 1
    for _ in range(count):
        before = (
            open_ones[-1 - int(min(rng.expovariate(0.05), len(open_ones) - 1))]
            if rng.random() < 0.7 and open_ones
            else [0]
        )
        added = rng.randrange(1, 12)
        ids = before + list(range(fresh, fresh + added))
        fresh += added
        requests.append(ids)
        open_ones.append(ids)
    return requests


def test_nodes_are_paths():
    requests = [*conversations(3000, seed=1), [7, 7, 7], [7, 7], [1 << 62, 7]]
    known: dict[tuple[int, ...], int] = {}
    trace = trace_of(requests)
    for ids, start in zip(requests, trace.starts, strict=True):
        for depth in range(len(ids)):
            assert trace.nodes[start + depth] == known.setdefault(tuple(ids[: depth + 1]), len(known))
    assert trace.num_nodes == len(known)


def test_ids_of_different_scopes_are_different():
    asked, ends = np.array([5, 6, 5, 6, 5, 6], np.int64), np.array([2, 4, 6], np.int64)
    assert Paths().walk(asked, ends, np.array([1, 2, 1], np.int32)).tolist() == [0, 1, 2, 3, 0, 1]


def test_the_curve_of_a_long_trace_is_what_the_real_cache_does():
    trace = trace_of(conversations(2500, seed=2))
    curve = Curve.of(trace)
    for size in (1, 10, 300, 2000, 8000, trace.num_nodes):
        assert score(trace, replay(trace, size, policy="lru") != MISS) == curve.at(size)
