"""What the trie holds of a prompt."""

from __future__ import annotations

from typing import NamedTuple

from kvledger.cache.digest import TOKEN_BYTES, token_at
from kvledger.cache.pool import BlockPool
from kvledger.cache.trie import NONE, Trie


class Match(NamedTuple):
    """The longest stretch of a prompt, from its first token, whose KV exists and has not expired.

    `path` are the full blocks to share, ending at trie node `node`. Of the block after them, block `source` holds the
    first `num_common` tokens (NONE and 0 if no block does), and goes on with `earlier_token` (None: it ends, too).
    `expired` says that a longer stretch was there, but its time is up.
    """

    path: list[int]
    node: int
    source: int
    num_common: int
    earlier_token: int | None
    expired: bool


def find_match(trie: Trie, pool: BlockPool, root: int, data: bytes, max_blocks: int, now: float) -> Match:
    """Match the token bytes `data`; share at most `max_blocks` full blocks, so that a token is left to compute."""
    path = trie.walk(root, data, max_blocks)
    length = len(path)
    while path and pool.is_expired(path[-1], now):
        path.pop()
    return match_below(trie, pool, path, path[-1] if path else root, data, now, expired=len(path) < length)


def match_below(
    trie: Trie, pool: BlockPool, path: list[int], node: int, data: bytes, now: float, *, expired: bool = False
) -> Match:
    """The match that consists of `path` and of what there is below its end, `node`."""
    width = trie.block_size * TOKEN_BYTES
    source, num_common = trie.nearest_child(node, data[len(path) * width : (len(path) + 1) * width])
    if source == NONE or pool.is_expired(source, now):
        return Match(path, node, NONE, 0, None, expired or num_common > 0)
    after = trie.tokens_of(source)[num_common * TOKEN_BYTES : (num_common + 1) * TOKEN_BYTES]
    return Match(path, node, source, num_common, token_at(after, 0) if after else None, expired)
