"""What the prompt cache itself costs, without a model: prints one JSON object.

    python benchmarks/cache_micro.py [num_blocks]

All times are processor time of this process. `acquire_100k_ms`: `acquire` of a 100,000-token prompt, all but its last
token cached, in a trie of `num_blocks` blocks; best of seven prompts. `insert_us` (acquire, commit and release, per
block) and `evict_us`: for prompts of 6,250 blocks, and in `by_prompt_blocks` for shorter ones, where the cost of a
request is spread over fewer blocks. `bytes_per_block`: all bookkeeping, by tracemalloc, in a run of its own.
"""

from __future__ import annotations

import json
import random
import sys
import time
import tracemalloc
from array import array

from kvledger.cache import Lease, Namespace, PromptCache
from kvledger.clock import SystemClock

BLOCK = 16
LONG = 6250
SPACE = Namespace("weights", "tokenizer", "", "layout", "")


def make(num_blocks: int) -> PromptCache:
    return PromptCache(num_blocks, block_size=BLOCK, bytes_per_block=1, clock=SystemClock())


def prompts(num_blocks: int, blocks_each: int, seed: int) -> list[array[int]]:
    rng = random.Random(seed)
    return [array("i", rng.randbytes(4 * BLOCK * blocks_each)) for _ in range(num_blocks // blocks_each)]


def fill(cache: PromptCache, work: list[array[int]]) -> float:
    """Seconds to admit, commit and release each prompt once."""
    start = time.process_time()
    for tokens in work:
        lease = cache.acquire(SPACE, tokens)
        assert isinstance(lease, Lease)
        cache.commit(lease, tokens, len(tokens))
        cache.release(lease)
    return time.process_time() - start


def evict(cache: PromptCache) -> float:
    """Seconds to evict everything: a lease that does not use the cache takes every block."""
    tokens = range(cache.pool.num_blocks * BLOCK)
    start = time.process_time()
    assert isinstance(cache.acquire(SPACE, tokens, use_cache=False), Lease)
    return time.process_time() - start


def acquire(cache: PromptCache, tokens: array[int]) -> float:
    """Seconds to find a prompt that is cached."""
    as_list = list(tokens)
    start = time.process_time()
    lease = cache.acquire(SPACE, as_list)
    seconds = time.process_time() - start
    assert isinstance(lease, Lease)
    assert lease.reused == len(tokens) - 1
    cache.release(lease)
    return seconds


def bytes_per_block(num_blocks: int, blocks_each: int) -> float:
    work = prompts(num_blocks, blocks_each, seed=2)
    tracemalloc.start()
    cache = make(num_blocks)
    fill(cache, work)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / cache.pool.idle


def main() -> None:
    num_blocks = (int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000) // LONG * LONG
    work = prompts(num_blocks, LONG, seed=1)
    cache = make(num_blocks)
    figures: dict[str, object] = {
        "num_blocks": num_blocks,
        "insert_us": round(1e6 * fill(cache, work) / num_blocks, 2),
        "acquire_100k_ms": round(1e3 * min(acquire(cache, work[len(work) * i // 7]) for i in range(7)), 2),
        "evict_us": round(1e6 * evict(cache) / num_blocks, 2),
        "bytes_per_block": round(bytes_per_block(num_blocks, LONG)),
    }
    shorter = {}
    for blocks_each in (256, 32, 1):
        count = min(num_blocks, 1000 * blocks_each + 20_000) // blocks_each * blocks_each
        work = prompts(count, blocks_each, seed=1)
        cache = make(count)
        shorter[blocks_each] = {
            "insert_us": round(1e6 * fill(cache, work) / count, 2),
            "evict_us": round(1e6 * evict(cache) / count, 2),
            "bytes_per_block": round(bytes_per_block(count, blocks_each)),
        }
    figures["by_prompt_blocks"] = shorter
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
