"""The cached blocks: what enters the trie, what leaves it, and everybody who must hear of it."""

from __future__ import annotations

from collections.abc import Sequence

from kvledger.cache.counters import Counters
from kvledger.cache.digest import TOKEN_BYTES
from kvledger.cache.events import EventLog, RemovalReason
from kvledger.cache.eviction import Policy
from kvledger.cache.lease import Lease
from kvledger.cache.miss import Graves
from kvledger.cache.namespace import Namespace
from kvledger.cache.pool import IDLE, READY, BlockPool
from kvledger.cache.reclaim import Reclaimer
from kvledger.cache.tiers import LowerTier
from kvledger.cache.trie import NONE, PARENT_BYTES, Trie, key_of
from kvledger.clock import Clock


class Residents:
    """The trie and the pool, changed together: a block is in the trie if and only if it is READY or IDLE."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        clock: Clock,
        policy: Policy,
        ttl: float,
        by_tenant: bool,
        counters: Counters,
        events: EventLog | None,
        lower: LowerTier | None,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self._clock = clock
        self._policy = policy
        self._ttl = ttl
        self._by_tenant = by_tenant
        self._counters = counters
        self._events = events
        self._lower = lower
        self._tick = 0
        self._start_empty()

    def _start_empty(self) -> None:
        num_blocks = self.pool.num_blocks
        with_digests = self._events is not None or self._lower is not None
        self.trie = Trie(num_blocks, self.block_size, with_digests=with_digests)
        self.graves = Graves(max(1024, num_blocks // 16))
        self.reclaimer = Reclaimer(
            self.pool, self.trie, self._policy, by_tenant=self._by_tenant, on_removed=self._on_removed
        )

    def publish_full(self, lease: Lease, data: bytes, count: int) -> None:
        """The next `count` blocks of the lease are full and written; `data` begins with their tokens.

        Where the trie has a twin (another lease was faster), the lease's own block stays private, and the twin is held
        in its stead so that what follows can go below it.
        """
        trie, size = self.trie, self.block_size
        width = size * TOKEN_BYTES
        index = lease.committed // size
        end = index + count
        at = 0
        while index < end and (twin := trie.nodes.get(key_of(lease.node, data[at : at + width]))) is not None:
            self.pool.pin((twin,), lease.tenant)
            lease.extra.append(twin)
            lease.node = twin
            index += 1
            at += width
        if index < end:
            blocks = lease.table[index:end]
            self._publish(blocks[0], lease.node, data[at : at + width], index * size)
            trie.insert_chain(blocks[0], data[at + width :], blocks[1:])
            self.pool.publish(blocks[1:], (index + 1) * size, size, self._clock.now(), self._ttl)
            self._record_stored(lease.node, blocks)
            lease.node = blocks[-1]
        lease.committed = end * size

    def publish_open(self, lease: Lease, tokens: bytes) -> None:
        """The lease's open block holds `tokens`, if any: let it be found, unless a sibling holds them as well."""
        if tokens and not self.trie.covers(lease.node, tokens):
            self._publish(lease.open_block(self.block_size), lease.node, tokens, lease.committed)

    def withdraw_open(self, lease: Lease) -> None:
        """The lease's open block has grown: take it out, to be published with what it holds now."""
        block = lease.open_block(self.block_size)
        if block != NONE and self.pool.states[block] == READY:
            self.trie.remove((block,))
            self.pool.retract(block)

    def shrink(self, block: int, parent: int, num_tokens: int) -> None:
        """Leave only the first tokens of a leaf that its holder takes over, because it will write what follows them."""
        if num_tokens == self.pool.sizes[block]:
            return
        tokens = self.trie.tokens_of(block)[: num_tokens * TOKEN_BYTES]
        keys = self.trie.remove((block,))
        self._record_removed((block,), keys, RemovalReason.REPLACED)
        if self.trie.covers(parent, tokens):
            self.pool.retract(block)
        else:
            self.trie.insert(parent, tokens, block)
            self.pool.sizes[block] = num_tokens

    def let_go(self, blocks: Sequence[int], tenant: int) -> None:
        """Hold blocks once less, the deepest first: cached ones that nobody holds now can be evicted."""
        self._tick += 1
        children = self.trie.children
        for block in self.pool.unpin(blocks, tenant, self._tick, self._clock.now()):
            if children[block] == NONE:
                self.reclaimer.offer(block)

    def clear(self) -> None:
        """Take everything out, in all tiers. Blocks that leases hold become theirs alone."""
        for block, state in enumerate(self.pool.states):
            if state in (READY, IDLE):
                self.pool.retract(block)
                self._counters.removed_blocks[RemovalReason.CLEARED] += 1
        self._start_empty()
        if self._lower is not None:
            self._lower.clear()
        if self._events is not None:
            self._events.cleared()

    def clear_namespace(self, namespace: Namespace) -> None:
        """Take out what one namespace holds, in all tiers. Blocks that leases hold become theirs alone."""
        trie = self.trie
        root = trie.root(namespace)
        parents_first: list[int] = []
        todo = trie.children_of(root)
        while todo:
            parents_first.append(todo.pop())
            todo += trie.children_of(parents_first[-1])
        self.graves.level([root, *parents_first])
        blocks = parents_first[::-1]
        keys: list[bytes] = []
        for block in blocks:
            keys += trie.remove((block,))
            self.pool.retract(block)
        if blocks:
            self._record_removed(blocks, keys, RemovalReason.CLEARED)
        if self._lower is not None:
            self._lower.clear(namespace.digest())

    def _publish(self, block: int, parent: int, tokens: bytes, position: int) -> None:
        """Put one block into the trie; the open sibling that it covers leaves."""
        covered = self.trie.insert(parent, tokens, block)
        if covered != NONE:
            self.pool.retract(covered)
            self._counters.removed_blocks[RemovalReason.REPLACED] += 1
        self.pool.publish((block,), position, len(tokens) // TOKEN_BYTES, self._clock.now(), self._ttl)

    def _record_stored(self, parent: int, blocks: Sequence[int]) -> None:
        if self._events is None and self._lower is None:
            return
        digests = self.trie.digests_of(blocks)
        if self._events is not None:
            self._events.stored(self.trie.digest_of(parent), digests)
        if self._lower is not None:
            for block, digest in zip(blocks, digests, strict=True):
                self._lower.note(block, digest)

    def _on_removed(self, run: Sequence[int], keys: Sequence[bytes], reason: RemovalReason) -> None:
        top = run[-1]
        self.graves.level(run)
        self.graves.dig(self.trie.parents[top], keys[-1][PARENT_BYTES:], reason)
        self._counters.lifetime.add(self._clock.now() - self.pool.stored[top])
        if self._lower is not None:
            self._lower.demote(self.trie, run, keys)
        self._record_removed(run, keys, reason)

    def _record_removed(self, run: Sequence[int], keys: Sequence[bytes], reason: RemovalReason) -> None:
        self._counters.removed_blocks[reason] += len(run)
        if self._events is not None:
            full = self.block_size * TOKEN_BYTES + PARENT_BYTES
            digests = self.trie.digests_of([block for block, key in zip(run, keys, strict=True) if len(key) == full])
            if digests:
                self._events.removed(digests, reason)
