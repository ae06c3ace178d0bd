"""Everything that must hold between two calls, checked over the whole structure. Slow: for tests and `verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise

from kvledger.cache.digest import TOKEN_BYTES, block_digest
from kvledger.cache.lease import Lease
from kvledger.cache.pool import FREE, IDLE, OWNED, READY
from kvledger.cache.prompt_cache import PromptCache
from kvledger.cache.trie import MANY, NONE, PARENT_BYTES, key_of


def check(cache: PromptCache, leases: Iterable[Lease] | None = None) -> None:
    """Raise `AssertionError` with every broken invariant. `leases`: all that are live, if the caller knows them."""
    found = list(problems(cache, leases))
    assert not found, "; ".join(found)


def problems(cache: PromptCache, leases: Iterable[Lease] | None = None) -> Iterator[str]:
    """One clause per broken invariant."""
    yield from _pool_problems(cache)
    yield from _trie_problems(cache)
    yield from _retention_problems(cache)
    if leases is not None:
        yield from _lease_problems(cache, list(leases))


def _pool_problems(cache: PromptCache) -> Iterator[str]:
    pool = cache.pool
    tally = Counter(pool.states)
    counts = {FREE: pool.free, OWNED: pool.owned, READY: pool.ready, IDLE: pool.idle}
    if sum(counts.values()) != pool.num_blocks:
        yield f"free + owned + ready + idle is {sum(counts.values())}, not {pool.num_blocks}"
    for state, count in counts.items():
        if count != tally[state]:
            yield f"{count} blocks are counted in state {state}, {tally[state]} are in it"
    if sorted(pool.free_blocks) != [block for block, state in enumerate(pool.states) if state == FREE]:
        yield "the free list is not the set of free blocks"
    for block, state in enumerate(pool.states):
        if (state in (OWNED, READY)) != (pool.refs[block] > 0):
            yield f"block {block} in state {state} has {pool.refs[block]} holders"
        if (state in (READY, IDLE)) != (cache.trie.keys[block] is not None):
            yield f"block {block} in state {state} is {'in' if cache.trie.keys[block] else 'not in'} the trie"
    held = Counter(pool.tenants[block] for block, state in enumerate(pool.states) if state != FREE)
    idle = Counter(pool.tenants[block] for block, state in enumerate(pool.states) if state == IDLE)
    for tenant, counted in enumerate(zip(pool.held, pool.tenant_idle, strict=True)):
        if counted != (held[tenant], idle[tenant]):
            yield f"tenant {tenant} is charged {counted} blocks, has {held[tenant]} and {idle[tenant]} idle"


def _trie_problems(cache: PromptCache) -> Iterator[str]:
    trie, pool = cache.trie, cache.pool
    listed = {key: block for block, key in enumerate(trie.keys) if key is not None}
    if listed != trie.nodes:
        yield "the dictionary of nodes does not match the keys of the blocks"
    roots = [root for spaces in trie.roots.values() for root in spaces.values()]
    seen = 0
    for node in [*roots, *listed.values()]:
        children = trie.children_of(node)
        seen += len(children)
        keys = [trie.keys[child] or b"" for child in children]
        if (trie.children[node] == MANY) != (len(children) > 1) or (node in trie.fans) != (len(children) > 1):
            yield f"node {node} is wrong about having many children"
        if any(b.startswith(a) for a, b in pairwise(keys)) or keys != sorted(keys):
            yield f"the children of node {node} are out of order or cover each other"
        end = 0 if node in roots else pool.positions[node] + pool.sizes[node]
        for child, key in zip(children, keys, strict=True):
            yield from _node_problems(cache, node, child, key, end)
            if node not in roots:
                if pool.states[child] == READY and pool.states[node] != READY:
                    yield f"block {child} is held, its parent {node} is not"
                if pool.ttl[child] > pool.ttl[node] or pool.pinned[child] > pool.pinned[node]:
                    yield f"block {child} is to stay longer than its parent {node}"
    if seen != len(listed):
        yield f"{len(listed)} blocks are in the trie, {seen} can be reached"


def _node_problems(cache: PromptCache, parent: int, block: int, key: bytes, position: int) -> Iterator[str]:
    trie, pool = cache.trie, cache.pool
    tokens = key[PARENT_BYTES:]
    size = len(tokens) // TOKEN_BYTES
    if key != key_of(parent, tokens) or trie.parents[block] != parent:
        yield f"block {block} does not know that it is a child of node {parent}"
    if (pool.positions[block], pool.sizes[block]) != (position, size) or not 0 < size <= trie.block_size:
        yield f"block {block} is wrong about its {size} tokens at position {position}"
    if size < trie.block_size and trie.children[block] != NONE:
        yield f"open block {block} has children"
    if trie.has_digests and trie.digest_of(block) != block_digest(trie.digest_of(parent), tokens):
        yield f"block {block} has another block's digest"


def _retention_problems(cache: PromptCache) -> Iterator[str]:
    pool, trie = cache.pool, cache.trie
    if pool.num_pinned != sum(pool.pinned) or pool.num_pinned > cache.pin_budget:
        yield f"{pool.num_pinned} blocks are counted as pinned, {sum(pool.pinned)} are, {cache.pin_budget} may be"
    leaves = [b for b in range(pool.num_blocks) if pool.states[b] == IDLE and trie.children[b] == NONE]
    for pinned in (0, 1):
        wanted = {block for block in leaves if pool.pinned[block] == pinned}
        if cache.reclaimer.queued(pinned) != wanted:
            yield f"the eviction queue {pinned} does not hold the idle leaves {sorted(wanted)}"
    if cache.tenant_blocks is not None:
        for tenant, held in enumerate(pool.held):
            if held > cache.tenant_blocks:
                yield f"tenant {tenant} holds {held} blocks and may hold {cache.tenant_blocks}"
            for pinned in (0, 1):
                wanted = {b for b in leaves if pool.pinned[b] == pinned and pool.tenants[b] == tenant}
                if cache.reclaimer.queued(pinned, tenant) != wanted:
                    yield f"the eviction queue {pinned} of tenant {tenant} does not hold its idle leaves"


def _lease_problems(cache: PromptCache, leases: list[Lease]) -> Iterator[str]:
    pool = cache.pool
    refs = Counter(block for lease in leases for block in [*lease.table, *lease.extra, *lease.sources])
    tables = Counter(block for lease in leases for block in lease.table)
    for block in range(pool.num_blocks):
        if refs[block] != pool.refs[block]:
            yield f"block {block} counts {pool.refs[block]} holders and has {refs[block]}"
    for lease in leases:
        if any(pool.states[block] == FREE for block in lease.table):
            yield "a live table names a free block"
        for copy in lease.copies if lease.sources else ():
            if pool.states[copy.src] == FREE or copy.dst not in lease.table:
                yield f"{copy} cannot be made"
        for block in lease.loading.blocks if lease.loading is not None else ():
            if pool.states[block] != OWNED or pool.refs[block] != 1 or block not in lease.table:
                yield f"block {block} is being loaded and is not its lease's alone"
        shared = -(-lease.reused // cache.block_size) - len(lease.copies)
        if any(tables[block] > 1 for block in lease.table[max(shared, lease.committed // cache.block_size) :]):
            yield "a block that a lease is going to write is in two tables"
