"""vLLM's `KVCacheManager` over its `BlockPool`, for `cache_peers.py`: no model, the bookkeeping alone.

Keys are chained SHA-256 hashes, vLLM's default. Making a request hashes its blocks, and is timed, as looking a prompt
up in ours compares its tokens.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import vllm
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

from workers.blocks import BLOCK, figures

HASH = get_hash_fn_by_name("sha256")
init_none_hash(HASH)
HASHER = get_request_block_hasher(BLOCK, HASH)


def make(num_blocks: int) -> KVCacheManager:
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=16, dtype=torch.float16)
    config = KVCacheConfig(num_blocks + 1, [], [KVCacheGroupSpec(["layer"], spec)])
    return KVCacheManager(config, num_blocks * BLOCK, scheduler_block_size=BLOCK, hash_block_size=BLOCK)


class Blocks:
    """The three things that are timed."""

    def __init__(self, num_blocks: int) -> None:
        self.manager = make(num_blocks)
        self.count = 0

    def request(self, tokens: list[int]) -> Request:
        self.count += 1
        return Request(str(self.count), tokens, SamplingParams(max_tokens=1), None, block_hasher=HASHER)

    def insert(self, tokens: list[int]) -> None:
        request = self.request(tokens)
        found, num_tokens, *_ = self.manager.get_computed_blocks(request)
        assert self.manager.allocate_slots(request, len(tokens) - num_tokens, num_tokens, found) is not None
        self.manager.free(request)

    def find(self, tokens: list[int]) -> None:
        _, num_tokens, *_ = self.manager.get_computed_blocks(self.request(tokens))
        assert num_tokens >= len(tokens) - BLOCK

    def evict(self, count: int) -> None:
        pool: Any = self.manager.block_pool
        pool.get_new_blocks(count)


if __name__ == "__main__":
    print(json.dumps({"engine": f"vLLM {vllm.__version__}", **figures(Blocks, int(sys.argv[1]))}))
