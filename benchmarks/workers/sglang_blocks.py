"""SGLang's `RadixCache` with pages of 16 tokens, for `cache_peers.py`: no model, the bookkeeping alone.

Its simulated form keeps token ids and page indices as the real one does, without memory pools.
"""

from __future__ import annotations

import json
import sys
from array import array

import sglang
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from workers.blocks import BLOCK, figures


class Blocks:
    """The three things that are timed."""

    def __init__(self, num_blocks: int) -> None:
        self.cache = RadixCache.create_simulated(page_size=BLOCK)
        self.taken = 0

    def insert(self, tokens: list[int]) -> None:
        key = RadixKey(array("q", tokens), None)
        self.cache.match_prefix(MatchPrefixParams(key=key))
        slots = torch.arange(self.taken, self.taken + len(tokens), dtype=torch.int64)
        self.taken += len(tokens)
        self.cache.insert(InsertParams(key=key, value=slots))

    def find(self, tokens: list[int]) -> None:
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens), None)))
        assert len(found.device_indices) >= len(tokens) - BLOCK

    def evict(self, count: int) -> None:
        self.cache.evict(EvictParams(num_tokens=count * BLOCK))


if __name__ == "__main__":
    print(json.dumps({"engine": f"SGLang {sglang.__version__}", **figures(Blocks, int(sys.argv[1]))}))
