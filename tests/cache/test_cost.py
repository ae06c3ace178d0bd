"""What the books cost in memory: at most 400 bytes per cached block, whatever the shape of the trie."""

from __future__ import annotations

import random
import tracemalloc
from array import array

import pytest

from kvledger.cache import Lease, PromptCache
from kvledger.cache.retention import BOOKKEEPING_BYTES
from kvledger.clock import SystemClock
from tests.cache.world import space


@pytest.mark.parametrize(("num_prompts", "blocks_each"), [(5_600, 1), (2_800, 4), (100, 250)])
def test_bookkeeping_per_block(num_prompts, blocks_each):
    """5,600 and 11,200 entries are just more than a dictionary holds before it grows: the dearest moment."""
    num_blocks = num_prompts * blocks_each
    rng = random.Random(1)
    prompts = [array("i", rng.randbytes(64 * blocks_each)) for _ in range(num_prompts)]
    tracemalloc.start()
    try:
        cache = PromptCache(num_blocks, bytes_per_block=1, clock=SystemClock())
        for tokens in prompts:
            lease = cache.acquire(space(), tokens)
            assert isinstance(lease, Lease)
            cache.commit(lease, tokens, len(tokens))
            cache.release(lease)
        del lease
        used, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.pool.idle == num_blocks
    assert used / num_blocks <= BOOKKEEPING_BYTES
    assert peak / num_blocks <= 1.5 * BOOKKEEPING_BYTES  # while the dictionary grows
