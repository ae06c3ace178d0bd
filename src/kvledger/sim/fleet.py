"""Several replicas, each with a cache of its own, and the router that decides who gets a request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import SimulationError
from kvledger.sim.trace import Trace

ROUTERS = {
    "round-robin": "request i goes to replica i mod K",
    "prefix": (
        "to the replica that last served the longest known prefix, if that is at least half of the prompt's blocks,"
        " otherwise to the one that has served the fewest blocks"
    ),
    "session": "a conversation stays where its first request went: to the replica that had served the fewest blocks",
}

_WORTH_FOLLOWING = 0.5
"""The share of a prompt that must be known somewhere, or a common system prompt would send everybody to one replica."""


def route(trace: Trace, router: str, replicas: int) -> NDArray[np.int64]:
    """The replica of each request. Routers know what they sent where, not what the caches still hold."""
    if router == "round-robin":
        return np.arange(trace.num_requests) % replicas
    if router == "session":
        return _by_session(trace, replicas)
    return _by_prefix(trace, replicas)


def _by_session(trace: Trace, replicas: int) -> NDArray[np.int64]:
    if trace.sessions is None:
        raise SimulationError(
            f"The {trace.format} trace does not say which requests belong to one session: use --router prefix."
        )
    served = [0] * replicas
    homes: dict[int, int] = {}
    chosen = np.empty(trace.num_requests, np.int64)
    for request, (session, length) in enumerate(zip(trace.sessions.tolist(), trace.lengths.tolist(), strict=True)):
        home = homes.get(session)
        if home is None:
            home = homes[session] = served.index(min(served))
        served[home] += length
        chosen[request] = home
    return chosen


def _by_prefix(trace: Trace, replicas: int) -> NDArray[np.int64]:
    served = [0] * replicas
    server = np.full(trace.num_nodes, -1, np.int16)  # the replica that last served the node
    chosen = np.empty(trace.num_requests, np.int64)
    for request, (start, end) in enumerate(zip(trace.starts.tolist(), trace.ends.tolist(), strict=True)):
        path = trace.nodes[start:end]
        servers = server[path]
        known = int(np.count_nonzero(servers >= 0))  # a prefix: whoever served a node served what is before it
        follows = known > 0 and known >= _WORTH_FOLLOWING * len(path)
        home = int(servers[known - 1]) if follows else served.index(min(served))
        server[path] = home
        served[home] += len(path)
        chosen[request] = home
    return chosen
