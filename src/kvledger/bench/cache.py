"""The prompt cache against the clock: its bookkeeping alone, and what it saves until the first token."""

from __future__ import annotations

import os
import random
import statistics
import tracemalloc
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kvledger.cache import Lease, Namespace, PromptCache
from kvledger.cache.disk import DiskTier
from kvledger.cache.events import EventLog
from kvledger.clock import Clock, SystemClock
from kvledger.engine.engine import Engine
from kvledger.engine.load import EngineSettings, load_engine
from kvledger.engine.request import Finished, Request, Sampling
from kvledger.errors import ModelFileError
from kvledger.text.prompt import Prompt

BLOCK = 16
LONG_BLOCKS = 6250
"""Blocks of the prompts that bookkeeping is measured with: 100,000 tokens each."""

PROMPT_TOKENS = 4096
NEW_TOKENS = 16
"""Tokens at the end of a prompt that are not cached."""

_SPACE = Namespace("weights", "tokenizer", "", "layout", "")
_POOL_BYTES = 512 << 20
_DISK_BYTES = 2 << 30


class BookkeepingBench:
    """A trie of about `num_blocks` blocks, filled with random prompts, recording events as a server does."""

    def __init__(self, num_blocks: int, *, clock: Clock | None = None) -> None:
        self.num_prompts = max(1, num_blocks // LONG_BLOCKS)
        self._clock = clock or SystemClock()

    @property
    def num_blocks(self) -> int:
        return self.num_prompts * LONG_BLOCKS

    def figures(self, rounds: int) -> dict[str, float]:
        """Medians over `rounds` caches, times on the wall.

        `insert_us`: acquire, commit and release of new prompts, per block. `acquire_100k_ms`: acquire of a prompt of
        100,000 tokens of which all but the last are cached. `evict_us`: per block, when a lease takes every block.
        `bytes_per_block`: all bookkeeping, by tracemalloc, of one cache a quarter as large.
        """
        work = self._prompts(self.num_prompts, seed=1)
        insert, acquire, evict = [], [], []
        for _ in range(rounds):
            cache = self._cache(self.num_blocks)
            insert.append(self._fill(cache, work) / self.num_blocks)
            for tokens in work[:: max(1, len(work) // 7)]:
                acquire.append(self._acquire(cache, tokens))
            evict.append(self._evict(cache) / self.num_blocks)
        return {
            "insert_us": 1e6 * statistics.median(insert),
            "acquire_100k_ms": 1e3 * statistics.median(acquire),
            "evict_us": 1e6 * statistics.median(evict),
            "bytes_per_block": self._bytes_per_block(max(1, self.num_prompts // 4)),
        }

    def _fill(self, cache: PromptCache, work: list[array[int]]) -> float:
        """Seconds to admit, commit and release each prompt once."""
        start = self._clock.monotonic()
        for tokens in work:
            lease = cache.acquire(_SPACE, tokens)
            assert isinstance(lease, Lease)
            cache.commit(lease, tokens, len(tokens))
            cache.release(lease)
        return self._clock.monotonic() - start

    def _acquire(self, cache: PromptCache, tokens: array[int]) -> float:
        """Seconds to find a prompt that is cached."""
        as_list = list(tokens)
        start = self._clock.monotonic()
        lease = cache.acquire(_SPACE, as_list)
        seconds = self._clock.monotonic() - start
        assert isinstance(lease, Lease)
        assert lease.reused == len(tokens) - 1
        cache.release(lease)
        return seconds

    def _evict(self, cache: PromptCache) -> float:
        """Seconds to evict everything: a lease that does not use the cache takes every block."""
        start = self._clock.monotonic()
        assert isinstance(cache.acquire(_SPACE, range(self.num_blocks * BLOCK), use_cache=False), Lease)
        return self._clock.monotonic() - start

    def _bytes_per_block(self, num_prompts: int) -> float:
        work = self._prompts(num_prompts, seed=2)
        tracemalloc.start()
        cache = self._cache(num_prompts * LONG_BLOCKS)
        self._fill(cache, work)
        used, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return used / cache.pool.idle

    def _cache(self, num_blocks: int) -> PromptCache:
        return PromptCache(num_blocks, block_size=BLOCK, bytes_per_block=1, clock=self._clock, events=EventLog())

    def _prompts(self, count: int, seed: int) -> list[array[int]]:
        draw = random.Random(seed)
        return [array("i", draw.randbytes(4 * BLOCK * LONG_BLOCKS)) for _ in range(count)]


class ReuseBench:
    """A model with a disk tier in `folder`, asked for one token after prompts of 4,096. Always `close` it.

    Raises `ModelFileError` for a file that cannot be used or a model made for too few tokens.
    """

    def __init__(
        self,
        model: str,
        folder: Path,
        *,
        threads: int | None = None,
        progress: Callable[[str], None] = lambda message: None,
    ) -> None:
        settings = EngineSettings(
            model=model, threads=threads, kv_memory=_POOL_BYTES, cache_folder=folder, cache_disk=_DISK_BYTES
        )
        loaded = load_engine(settings, progress=progress)
        if loaded.engine.context_length <= PROMPT_TOKENS:
            raise ModelFileError(
                f"{model} is made for {loaded.engine.context_length} tokens and the benchmark needs"
                f" {PROMPT_TOKENS + 1}: measure a model with a longer context."
            )
        self._engine: Engine = loaded.engine
        self._vocab_size = loaded.tokenizer.vocab_size
        self._number = 0
        self._engine.start()
        self._ask([*self._draw(2 * BLOCK)], reused=0)  # the first pass is slower

    def close(self) -> None:
        self._engine.close(drain=0)

    def seconds(self) -> dict[str, float]:
        """Seconds to the first token of a new prompt, of one whose beginning is in RAM, and of one where it is on disk.

        For the last, RAM has been taken by something else, and the system's copies of the files are dropped where the
        system allows that, so that they are read from the disk.
        """
        beginning = self._draw(PROMPT_TOKENS - NEW_TOKENS)
        cold = self._ask(beginning + self._draw(NEW_TOKENS), reused=0)
        self._engine.with_cache(_write_out)
        ram = self._ask(beginning + self._draw(NEW_TOKENS), reused=len(beginning))
        self._engine.with_cache(_push_out)
        disk = self._ask(beginning + self._draw(NEW_TOKENS), reused=len(beginning))
        return {"ttft_cold_s": cold, "ttft_ram_s": ram, "ttft_disk_s": disk}

    def _ask(self, tokens: list[int], reused: int) -> float:
        self._number += 1
        request = Request(f"bench-{self._number}", Prompt(tuple(tokens)), Sampling(temperature=0), max_tokens=1)
        finished = [event for event in self._engine.generate(request) if isinstance(event, Finished)][-1]
        usage = finished.usage
        if usage.reused_tokens != reused:
            raise AssertionError(f"reused {usage.reused_tokens} tokens instead of {reused}: {usage.miss}")
        return usage.queued + usage.prefill

    def _draw(self, count: int) -> list[int]:
        self._number += 1
        draw = random.Random(self._number)
        return [draw.randrange(self._vocab_size) for _ in range(count)]


def _write_out(cache: PromptCache) -> None:
    """Put everything on disk now, so that the writing does not go on while something else is timed."""
    assert cache.lower is not None
    while cache.persist(1 << 20):
        cache.lower.tier.flush()
    cache.lower.tier.flush()


def _push_out(cache: PromptCache) -> None:
    """Let one lease take all of RAM, so that what is cached is left on disk only."""
    assert cache.lower is not None
    tier = cache.lower.tier
    assert isinstance(tier, DiskTier)
    space = next(space for spaces in cache.trie.roots.values() for space in spaces)
    lease = cache.acquire(
        replace(space, tenant="bench"), range(cache.pool.num_blocks * cache.block_size), use_cache=False
    )
    assert isinstance(lease, Lease)
    cache.release(lease)
    for path in tier.files():
        file = os.open(path, os.O_RDONLY)
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
