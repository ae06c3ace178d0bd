"""What the workers of `cache_peers.py` measure, in the same way as `kvledger bench cache`: standard library only."""

from __future__ import annotations

import random
import statistics
import time
import tracemalloc
from array import array
from typing import Protocol

BLOCK = 16
LONG_BLOCKS = 6250


class Blocks(Protocol):
    """A prefix cache without a model."""

    def insert(self, tokens: list[int]) -> None:
        """Look a new prompt up, take blocks for it, put them into the cache and let them go."""
        ...

    def find(self, tokens: list[int]) -> None:
        """Look up a prompt that is cached; up to a block of it may be left out."""
        ...

    def evict(self, count: int) -> None:
        """Make room for `count` blocks, all of which are cached."""
        ...


class Maker(Protocol):
    def __call__(self, num_blocks: int) -> Blocks: ...


def prompts(count: int, seed: int) -> list[list[int]]:
    """Random prompts of 100,000 tokens."""
    draw = random.Random(seed)
    return [[abs(t) for t in array("i", draw.randbytes(4 * BLOCK * LONG_BLOCKS))] for _ in range(count)]


def figures(make: Maker, num_blocks: int) -> dict[str, float]:
    """Times on the wall; memory by tracemalloc, of a cache a quarter as large, without the prompts."""
    count = max(1, num_blocks // LONG_BLOCKS)
    num_blocks = count * LONG_BLOCKS
    work = prompts(count, seed=1)
    cache = make(num_blocks)
    start = time.perf_counter()
    for tokens in work:
        cache.insert(tokens)
    insert = time.perf_counter() - start
    finds = []
    for tokens in work[:: max(1, count // 7)]:
        start = time.perf_counter()
        cache.find(tokens)
        finds.append(time.perf_counter() - start)
    start = time.perf_counter()
    cache.evict(num_blocks)
    evict = time.perf_counter() - start
    del cache
    fewer = max(1, count // 4)
    work = prompts(fewer, seed=2)
    tracemalloc.start()
    small = make(fewer * LONG_BLOCKS)
    for tokens in work:
        small.insert(tokens)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "insert_us": 1e6 * insert / num_blocks,
        "acquire_100k_ms": 1e3 * statistics.median(finds),
        "evict_us": 1e6 * evict / num_blocks,
        "bytes_per_block": used / (fewer * LONG_BLOCKS),
    }
