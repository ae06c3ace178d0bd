"""What the trie holds of a prompt."""

from __future__ import annotations

from typing import NamedTuple

from kvledger.cache.digest import TOKEN_BYTES
from kvledger.cache.pool import BlockPool
from kvledger.cache.trie import NONE, Trie


class Match(NamedTuple):
    """The longest stretch of a prompt, from its first token, whose KV exists and has not expired.

    `path` are the full blocks to share, ending at trie node `node`. Of the block after them, block `source` holds the
    first `num_common` tokens (NONE and 0 if no block does). `expired` says that a longer stretch was there, but its
    time is up.
    """

    path: list[int]
    node: int
    source: int
    num_common: int
    expired: bool


def find_match(trie: Trie, pool: BlockPool, root: int, data: bytes, max_blocks: int, now: float) -> Match:
    """Match the token bytes `data`; share at most `max_blocks` full blocks, so that a token is left to compute."""
    path = trie.walk(root, data, max_blocks)
    expired = False
    while path and pool.is_expired(path[-1], now):
        path.pop()
        expired = True
    node = path[-1] if path else root
    width = trie.block_size * TOKEN_BYTES
    source, num_common = trie.nearest_child(node, data[len(path) * width : (len(path) + 1) * width])
    if source != NONE and pool.is_expired(source, now):
        expired = expired or num_common > 0
        source, num_common = NONE, 0
    return Match(path, node, source, num_common, expired)
