"""Idle blocks on their way out: who goes next, under pressure or because time is up."""

from __future__ import annotations

from collections.abc import Callable

from kvledger.cache.events import RemovalReason
from kvledger.cache.eviction import Candidate, EvictionQueue, Policy
from kvledger.cache.pool import IDLE, BlockPool
from kvledger.cache.retention import Expiry
from kvledger.cache.trie import NONE, Trie


class Reclaimer:
    """The idle leaves of the trie, in the order in which they go: unpinned before pinned, then by policy.

    Only leaves are queued, so children go before parents: a parent joins when its last child has gone. With
    `by_tenant`, every tenant has queues of its own besides, so that it can be made to give up its own blocks first.

    `on_removed(run, keys, reason)` hears of every run of blocks, the deepest first, after it has left the trie and
    before any of it is taken again: contents, parents and digests are still in place.
    """

    def __init__(
        self,
        pool: BlockPool,
        trie: Trie,
        policy: Policy,
        *,
        by_tenant: bool,
        on_removed: Callable[[list[int], list[bytes], RemovalReason], None],
    ) -> None:
        self._pool = pool
        self._trie = trie
        self._policy = policy
        self._on_removed = on_removed
        self._everyone = self._new_queues()
        self._by_tenant: dict[int, tuple[EvictionQueue, EvictionQueue]] | None = {} if by_tenant else None
        self._expiry = Expiry()

    def offer(self, block: int) -> None:
        """`block` is idle and has no children: it can go from now on."""
        pool = self._pool
        candidate = Candidate(self._policy.priority(block, pool), pool.ticks[block], block)
        self._everyone[pool.pinned[block]].push(candidate)
        if self._by_tenant is not None:
            tenant = pool.tenants[block]
            if tenant not in self._by_tenant:
                self._by_tenant[tenant] = self._new_queues()
            self._by_tenant[tenant][pool.pinned[block]].push(candidate)
        self._expiry.add(pool.used[block] + pool.ttl[block], block)

    def evict(self, count: int, tenant: int | None = None) -> None:
        """Free `count` idle blocks, of one tenant or of everyone's. The caller has checked that there are that many."""
        queues = self._everyone
        if tenant is not None:
            assert self._by_tenant is not None, "tenants have no queues of their own"
            queues = self._by_tenant[tenant]
        for queue in queues:
            while count > 0:
                candidate = queue.pop()
                if candidate is None:
                    break
                if self._is_live(candidate):
                    self._pool.floor = max(self._pool.floor, candidate.priority)
                    run = self._victims(candidate.block, count, queue.first())
                    self._remove(run, RemovalReason.EVICTED)
                    count -= len(run)
        assert count <= 0, "an idle block is missing from the eviction queues"

    def expire(self, now: float) -> None:
        """Free every idle block whose time to live had ended by the last whole second."""
        pool, trie = self._pool, self._trie
        while due := self._expiry.take_due(now):
            for block in due:
                if trie.children[block] != NONE or not pool.is_expired(block, now):
                    continue
                run = [block]
                parent = trie.parents[block]
                while parent < pool.num_blocks and trie.children[parent] == run[-1] and pool.is_expired(parent, now):
                    run.append(parent)
                    parent = trie.parents[parent]
                self._remove(run, RemovalReason.EXPIRED)

    def queued(self, pinned: int, tenant: int | None = None) -> set[int]:
        """The blocks that can go, of one tenant or of everyone."""
        queues = self._everyone
        if tenant is not None and self._by_tenant is not None:
            queues = self._by_tenant.get(tenant) or self._new_queues()
        return {candidate.block for candidate in queues[pinned] if self._is_live(candidate)}

    def _victims(self, block: int, count: int, rival: Candidate | None) -> list[int]:
        """`block` and then its ancestors, at most `count`, for as long as each would be the next to go anyway."""
        pool, parents, children = self._pool, self._trie.parents, self._trie.children
        states, pinned, ticks, num_blocks = pool.states, pool.pinned, pool.ticks, pool.num_blocks
        priority = self._policy.priority
        kind = pinned[block]
        run = [block]
        while len(run) < count:
            parent = parents[block]
            if parent >= num_blocks or states[parent] != IDLE or children[parent] != block or pinned[parent] != kind:
                break
            if rival is not None and (priority(parent, pool), ticks[parent], parent) > rival:
                break
            run.append(parent)
            block = parent
        return run

    def _remove(self, run: list[int], reason: RemovalReason) -> None:
        keys = self._trie.remove(run)
        self._pool.drop(run)
        parent = self._trie.parents[run[-1]]
        is_block = parent < self._pool.num_blocks
        if is_block and self._pool.states[parent] == IDLE and self._trie.children[parent] == NONE:
            self.offer(parent)
        self._on_removed(run, keys, reason)

    def _new_queues(self) -> tuple[EvictionQueue, EvictionQueue]:
        return EvictionQueue(self._is_live), EvictionQueue(self._is_live)

    def _is_live(self, candidate: Candidate) -> bool:
        _, tick, block = candidate
        pool = self._pool
        return pool.ticks[block] == tick and pool.states[block] == IDLE and self._trie.children[block] == NONE
