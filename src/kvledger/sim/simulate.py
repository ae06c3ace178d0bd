"""What is simulated, and the simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import SimulationError
from kvledger.sim.fleet import ROUTERS, route
from kvledger.sim.policies import POLICIES, check_name
from kvledger.sim.replay import MISS, RAM, replay
from kvledger.sim.stack import depths
from kvledger.sim.trace import Trace

ORDERS = {
    "tail": "of the blocks of one request, the last goes first, so that what is left is a prefix",
    "head": "of the blocks of one request, the first goes first; what is left behind it takes up room and cannot hit",
}

MAX_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class Setup:
    """A cache, or a fleet of equal ones. Sizes are in blocks, None is without a limit; `ttl` is in seconds without use.

    With `has_disk`, evicted blocks go to a second tier of `disk_blocks`. Raises `SimulationError` for what cannot be.
    """

    ram_blocks: int | None = None
    policy: str = "lru"
    ttl: float | None = None
    order: str = "tail"
    has_disk: bool = False
    disk_blocks: int | None = None
    replicas: int = 1
    router: str = "round-robin"

    def __post_init__(self) -> None:
        check_name("policy", self.policy, list(POLICIES))
        check_name("order", self.order, list(ORDERS))
        check_name("router", self.router, list(ROUTERS))
        if self.ttl is not None and not (0 < self.ttl < math.inf):
            raise SimulationError(f"A time to live of {self.ttl} seconds cannot be: give a number above zero, or none.")
        if not 1 <= self.replicas <= MAX_REPLICAS:
            raise SimulationError(f"A fleet of {self.replicas} replicas cannot be: give 1 to {MAX_REPLICAS}.")
        if self.order == "head" and (self.policy != "lru" or self.has_disk):
            raise SimulationError("--order head is for the policy lru without tiers: leave one of them out.")


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """`found`: by access, where its block was (`replay.MISS`, `RAM` or `DISK`). `homes`: each request's replica."""

    found: NDArray[np.int8]
    homes: NDArray[np.int64]


def simulate(trace: Trace, setup: Setup) -> Run:
    """Run a trace through a cache or a fleet that starts empty.

    Raises `SimulationError` if the trace lacks what the setup needs: times for a TTL, sessions for a router by session.
    """
    if setup.ttl is not None and trace.unsure_times:
        raise SimulationError(f"A time to live needs times that can be relied on. {trace.unsure_times}")
    if setup.replicas == 1:
        return Run(_one(trace, setup), np.zeros(trace.num_requests, np.int64))
    homes = route(trace, setup.router, setup.replicas)
    found = np.zeros(len(trace.nodes), np.int8)
    for replica in np.unique(homes):
        mine = homes == replica
        found[trace.accesses_of(mine)] = _one(trace.select(mine), setup)
    return Run(found, homes)


def _one(trace: Trace, setup: Setup) -> NDArray[np.int8]:
    if setup.policy == "lru" and not setup.has_disk:
        needed = depths(trace, ttl=setup.ttl, tail_first=setup.order == "tail")
        fits = needed != MISS
        if setup.ram_blocks is not None:
            fits &= needed <= setup.ram_blocks
        return np.where(fits, RAM, MISS).astype(np.int8)
    everything = max(1, np.unique(trace.nodes).size)
    size = everything if setup.ram_blocks is None else min(setup.ram_blocks, everything)
    return replay(
        trace,
        size,
        policy=setup.policy,
        ttl=setup.ttl,
        has_disk=setup.has_disk,
        disk_size=setup.disk_blocks,
    )
