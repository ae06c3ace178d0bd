"""The cached prefixes as a person wants to see them: a tree of stretches instead of thousands of blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvledger.cache.digest import TOKEN_BYTES, Digest, token_at
from kvledger.cache.namespace import Namespace
from kvledger.cache.pool import READY
from kvledger.cache.prompt_cache import PromptCache


@dataclass(frozen=True)
class Stretch:
    """Blocks that follow each other without a branch.

    `depth` is the number of branches above it, `position` that of its first token in its prompts. `hits` counts leases
    that found its last block, `age` the seconds since that block was stored, `idle` those since it was last used (0
    while a lease holds it), `expires` those until its time to live is up, unless it is used (None: it has none).
    `num_pinned` of its `num_blocks` are pinned by marks.
    """

    namespace: Namespace
    depth: int
    position: int
    tokens: tuple[int, ...]
    num_blocks: int
    hits: int
    age: float
    idle: float
    expires: float | None
    num_pinned: int


def outline(cache: PromptCache, now: float, tenant: str | None = None) -> Iterator[Stretch]:
    """Every stretch of the cache, or of one tenant, each after the one that it continues.

    Read it without using the cache meanwhile.
    """
    trie, pool = cache.trie, cache.pool
    for spaces in trie.roots.values() if tenant is None else [trie.roots.get(tenant, {})]:
        for namespace, root in spaces.items():
            todo = [(child, 0) for child in reversed(trie.children_of(root))]
            while todo:
                block, depth = todo.pop()
                blocks = [block]
                while len(children := trie.children_of(blocks[-1])) == 1:
                    blocks += children
                last = blocks[-1]
                data = b"".join(trie.tokens_of(each) for each in blocks)
                idle = 0.0 if pool.states[last] == READY else now - pool.used[last]
                yield Stretch(
                    namespace,
                    depth,
                    pool.positions[block],
                    tuple(token_at(data, index) for index in range(len(data) // TOKEN_BYTES)),
                    len(blocks),
                    pool.hits[last],
                    now - pool.stored[last],
                    idle,
                    None if pool.ttl[last] == math.inf else pool.ttl[last] - idle,
                    sum(pool.pinned[each] for each in blocks),
                )
                todo += [(child, depth + 1) for child in reversed(children)]


def resident_digests(cache: PromptCache) -> Iterator[tuple[Digest, tuple[Digest, ...]]]:
    """The full blocks in RAM as events tell them: runs of digests, each with the digest of what comes before it."""
    trie, pool = cache.trie, cache.pool
    todo = [root for spaces in trie.roots.values() for root in spaces.values()]
    while todo:
        parent = todo.pop()
        for child in trie.children_of(parent):
            run = [child]
            while len(children := trie.children_of(run[-1])) == 1:
                run += children
            if len(children) > 1:
                todo.append(run[-1])
            full = [block for block in run if pool.sizes[block] == cache.block_size]
            if full:
                yield trie.digest_of(parent), trie.digests_of(full)
