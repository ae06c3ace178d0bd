"""A trace through the real prompt cache, with a clock that stands where the trace says."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from kvledger.cache import Lease, Namespace, PromptCache
from kvledger.cache.tiers import LowerTier
from kvledger.clock import ManualClock
from kvledger.sim.memory_tier import MemoryTier
from kvledger.sim.policies import Tutor
from kvledger.sim.trace import Trace

MISS, RAM, DISK = 0, 1, 2
"""Where a block was found."""

_SPACE = Namespace(weights="", tokenizer="", adapter="", layout="", tenant="")
_COMPUTED = -1
"""Stands for the token that the cache always leaves to compute; no node has this number."""


def replay(
    trace: Trace,
    size: int,
    *,
    policy: str,
    ttl: float | None = None,
    has_disk: bool = False,
    disk_size: int | None = None,
) -> NDArray[np.int8]:
    """By access, where its block was found in a cache of `size` blocks: MISS, RAM or DISK.

    The cache sees each block of the trace as one token, its node, in a block of its own, so that its trie compares what
    the trace says and no more. One block besides holds the token to compute, and is free between requests. A request
    is over before the next one comes. Of a prompt longer than the cache, what fits is used. With `has_disk`, evicted
    blocks go to a tier of `disk_size` blocks (None: no limit) and are always loaded from there rather than computed.
    """
    tutor = Tutor(policy, trace)
    clock = ManualClock(float(trace.times[0]))
    lower = None
    if has_disk:
        lower = LowerTier(
            MemoryTier(disk_size),
            read_block=lambda block: b"",
            write_block=lambda block, payload: None,
        )
    cache = PromptCache(
        size + 1, block_size=1, bytes_per_block=1, clock=clock, policy=tutor.policy, ttl=ttl, lower=lower
    )
    result = np.zeros(len(trace.nodes), np.int8)
    starts = trace.starts.tolist()
    for request, (start, end) in enumerate(zip(starts, trace.ends.tolist(), strict=True)):
        clock.advance(float(trace.times[request]) - clock.now())
        count = min(end - start, size)
        tokens = array("i", trace.nodes[start : start + count].tobytes())
        tokens.append(_COMPUTED)
        loaded = 0 if lower is None else -lower.loaded_blocks
        lease = cache.acquire(_SPACE, tokens)
        assert isinstance(lease, Lease), "one request at a time, no longer than the cache, always fits"
        loaded += 0 if lower is None else lower.loaded_blocks
        in_ram = lease.reused - loaded
        result[start : start + in_ram] = RAM
        result[start + in_ram : start + lease.reused] = DISK
        cache.commit(lease, tokens, count)
        tutor.tell(request, start, lease.table[:count], in_ram)
        cache.release(lease)
    return result
