"""What the prompt cache itself costs, without a model: prints one JSON object.

    python benchmarks/cache_micro.py [num_blocks]

`acquire_100k_ms`: acquire of a 100,000-token prompt, all but its last token cached, in a trie of `num_blocks` blocks.
`insert_us`, `evict_us`: microseconds per block over prompts of 6,250 blocks (`chain`) and of one block (`flat`).
`bytes_per_block`: memory of all bookkeeping per cached block, by tracemalloc, in a run of its own.
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
SPACE = Namespace("weights", "tokenizer", "", "layout", "")


def make(num_blocks: int) -> PromptCache:
    return PromptCache(num_blocks, block_size=BLOCK, bytes_per_block=1, clock=SystemClock())


def prompts(num_blocks: int, blocks_each: int, seed: int) -> list[array[int]]:
    rng = random.Random(seed)
    size = blocks_each * BLOCK
    return [array("i", rng.randbytes(4 * size)) for _ in range(num_blocks // blocks_each)]


def fill(cache: PromptCache, work: list[array[int]]) -> float:
    """Seconds of the cache's own work to admit, commit and release each prompt."""
    start = time.process_time()
    for tokens in work:
        lease = cache.acquire(SPACE, tokens)
        assert isinstance(lease, Lease)
        cache.commit(lease, tokens, len(tokens))
        cache.release(lease)
    return time.process_time() - start


def evict(cache: PromptCache) -> float:
    """Seconds to evict everything, by taking every block for a lease that does not use the cache."""
    start = time.process_time()
    lease = cache.acquire(SPACE, range(cache.pool.num_blocks * BLOCK), use_cache=False)
    seconds = time.process_time() - start
    assert isinstance(lease, Lease)
    return seconds


def main() -> None:
    num_blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    figures: dict[str, float] = {"num_blocks": num_blocks}

    for shape, each in (("chain", 6250), ("flat", 1)):
        count = num_blocks // each * each
        work = prompts(count, each, seed=1)
        cache = make(count)
        figures[f"insert_us_{shape}"] = 1e6 * fill(cache, work) / count
        if shape == "chain":
            best = float("inf")
            for tokens in [work[len(work) * i // 7] for i in range(7)]:
                as_list = list(tokens)
                start = time.process_time()
                lease = cache.acquire(SPACE, as_list, reserve=0)
                best = min(best, time.process_time() - start)
                assert isinstance(lease, Lease)
                assert lease.reused == len(tokens) - 1
                cache.release(lease)
            figures["acquire_100k_ms"] = 1e3 * best
        figures[f"evict_us_{shape}"] = 1e6 * evict(cache) / count
        del cache

        work = prompts(count, each, seed=2)
        tracemalloc.start()
        cache = make(count)
        fill(cache, work)
        figures[f"bytes_per_block_{shape}"] = tracemalloc.get_traced_memory()[0] / count
        tracemalloc.stop()
        del cache, work

    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))


if __name__ == "__main__":
    main()
