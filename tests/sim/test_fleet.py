from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import SimulationError
from kvledger.sim.fleet import ROUTERS, route
from kvledger.sim.replay import MISS
from kvledger.sim.simulate import Setup, simulate
from tests.sim.traces import request_lists, trace_of


def hits(trace, router, **setup):
    return int(np.count_nonzero(simulate(trace, Setup(replicas=2, router=router, **setup)).found != MISS))


def test_routers_by_hand():
    """Two conversations by turns A, B, B, A: turning goes wrong, following does not."""
    trace = trace_of([[1, 2], [8, 9], [8, 9, 7], [1, 2, 3]], sessions=[0, 1, 1, 0])
    assert route(trace, "round-robin", 2).tolist() == [0, 1, 0, 1]
    assert route(trace, "session", 2).tolist() == [0, 1, 1, 0]
    assert route(trace, "prefix", 2).tolist() == [0, 1, 1, 0]
    assert hits(trace, "round-robin") == 0
    assert hits(trace, "session") == hits(trace, "prefix") == 4


def test_a_common_system_prompt_does_not_send_everybody_to_one_replica():
    trace = trace_of([[0, 10 * i + 1, 10 * i + 2, 10 * i + 3] for i in range(8)])
    assert sorted(route(trace, "prefix", 2).tolist()) == [0] * 4 + [1] * 4


@given(request_lists(), st.sampled_from(["round-robin", "prefix"]), st.integers(1, 5))
def test_a_fleet_is_its_replicas(requests, router, replicas):
    trace = trace_of(requests)
    run = simulate(trace, Setup(ram_blocks=6, replicas=replicas, router=router))
    assert set(run.homes.tolist()) <= set(range(replicas))
    for replica in range(replicas):
        mine = [ids for ids, home in zip(requests, run.homes.tolist(), strict=True) if home == replica]
        if mine:
            alone = simulate(trace_of(mine), Setup(ram_blocks=6)).found
            assert np.array_equal(run.found[trace.accesses_of(run.homes == replica)], alone)


def test_one_replica_needs_no_router():
    trace = trace_of([[1], [1]])
    for router in ROUTERS:
        assert np.count_nonzero(simulate(trace, Setup(router=router)).found) == 1


def test_a_trace_without_sessions_cannot_be_routed_by_session():
    with pytest.raises(SimulationError, match="use --router prefix"):
        route(trace_of([[1]]), "session", 2)
