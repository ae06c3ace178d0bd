"""The prompt cache: lookup, pin and admission in one step, and everything that follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kvledger.cache.counters import Counters
from kvledger.cache.digest import TOKEN_BYTES, token_bytes
from kvledger.cache.events import EventLog
from kvledger.cache.eviction import LRU, Policy
from kvledger.cache.lease import Copy, Generation, Inquiry, Lease, OverQuota, Pending, Writers
from kvledger.cache.lookup import Match, find_match, match_below
from kvledger.cache.miss import Miss, MissReason, explain, segment_path
from kvledger.cache.namespace import Namespace
from kvledger.cache.pool import IDLE, READY, BlockPool
from kvledger.cache.reclaim import Reclaimer
from kvledger.cache.residents import Residents
from kvledger.cache.retention import blocks_within, keep
from kvledger.cache.tiers import LowerTier, TierEntry
from kvledger.cache.trie import NONE, Trie
from kvledger.clock import Clock
from kvledger.text.prompt import Mark, Segment


class PromptCache:
    """Blocks of KV that outlive the request that computed them. Not thread-safe: one thread owns it.

    `num_blocks` is the size of the KV pool, of which no more is ever in use than `limit_bytes` allows. `ttl` is how
    long a block stays without being used, in seconds (None: for ever). Marks pin at most `pin_share` of the blocks. No
    tenant ever holds more than `tenant_bytes`. Events are recorded if there is a log to put them into.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        block_size: int = 16,
        bytes_per_block: int,
        clock: Clock,
        policy: Policy | None = None,
        ttl: float | None = 300.0,
        pin_share: float = 0.25,
        limit_bytes: int | None = None,
        tenant_bytes: int | None = None,
        events: EventLog | None = None,
        lower: LowerTier | None = None,
        enabled: bool = True,
    ) -> None:
        if limit_bytes is not None:
            num_blocks = min(num_blocks, blocks_within(limit_bytes, bytes_per_block))
        self.block_size = block_size
        self.bytes_per_block = bytes_per_block
        self.enabled = enabled
        self.counters = Counters()
        self.events = events
        self.lower = lower
        self.pool = BlockPool(num_blocks)
        self._clock = clock
        self.pin_budget = int(pin_share * num_blocks)
        self.tenant_blocks = None if tenant_bytes is None else blocks_within(tenant_bytes, bytes_per_block)
        self._residents = Residents(
            self.pool,
            block_size,
            clock=clock,
            policy=policy or LRU(),
            ttl=math.inf if ttl is None else ttl,
            by_tenant=tenant_bytes is not None,
            counters=self.counters,
            events=events,
            lower=lower,
        )
        self._writers = Writers()
        self._generations: dict[Namespace, Generation] = {}
        self._tenants: dict[str, int] = {}

    @property
    def trie(self) -> Trie:
        """The cached blocks by content. Replaced by `clear`: do not keep it."""
        return self._residents.trie

    @property
    def reclaimer(self) -> Reclaimer:
        """The cached blocks that can go. Replaced by `clear`: do not keep it."""
        return self._residents.reclaimer

    @property
    def capacity(self) -> int:
        """The most tokens that one sequence can have."""
        blocks = self.pool.num_blocks
        return self.block_size * (blocks if self.tenant_blocks is None else min(blocks, self.tenant_blocks))

    def fits(self, num_tokens: int) -> bool:
        """Whether a sequence of `num_tokens` could be admitted if nothing else were running."""
        return num_tokens <= self.capacity

    def acquire(
        self,
        namespace: Namespace,
        tokens: Sequence[int],
        *,
        reserve: int = 0,
        segments: Sequence[Segment] = (),
        marks: Sequence[Mark] = (),
        use_cache: bool = True,
        again: bool = False,
    ) -> Lease | Pending | OverQuota | None:
        """Look `tokens` up, hold what is there, take blocks for the rest and for `reserve` tokens more: all or nothing.

        Returns None when the pool has no room now, `OverQuota` when the tenant may not have more now, `Pending` when
        waiting for a running lease saves computing; none of them changes or counts anything. `again` says that this
        request was admitted before (it was preempted): it is not counted a second time. `segments` let the lease's miss
        name the path in the request body.
        """
        num_tokens = len(tokens)
        assert num_tokens, "a prompt has at least one token"
        tenant = self._tenant(namespace.tenant)
        num_blocks = self._blocks_for(num_tokens + reserve)
        now = self._clock.now()
        self.reclaimer.expire(now)
        if not (use_cache and self.enabled):
            if not self._has_room(tenant, num_blocks):
                return self._shortage(tenant, num_blocks)
            private = Lease(self._take(num_blocks, tenant), tenant)
            private.miss = Miss(MissReason.DISABLED, 0, segment_path(segments, 0))
            self._count(private, num_tokens, again)
            return private

        data = token_bytes(tokens)
        root = self.trie.root(namespace)
        match = find_match(self.trie, self.pool, root, data, (num_tokens - 1) // self.block_size, now)
        if self._being_written(match, data) == self.block_size:
            return Pending(len(match.path) * self.block_size)
        entries, covered = self._find_below(match, data[:-TOKEN_BYTES])
        lease = self._admit(match, num_tokens, num_blocks, tenant, now, uses_source=not entries)
        if not isinstance(lease, Lease):
            return lease
        lease.data = data
        lease.marks = tuple(marks)
        lease.generation = self._generations.setdefault(namespace, Generation())
        lease.inquiry = Inquiry(namespace, tuple(segments), again)
        if not entries:
            self._conclude(lease, match)
            return lease
        assert self.lower is not None
        first = len(match.path)
        lease.loading = self.lower.load(entries, covered, lease.table[first : first + len(entries)], self._clock)
        self._writers.add(lease)
        self.receive(lease)  # it may be there already
        return lease

    def receive(self, lease: Lease) -> bool:
        """Take in what the lower tier brings up for a lease; False while some of it is on its way.

        To be called between steps until it is True; from then on `reused` and `miss` are final. What could not be
        loaded is left to compute.
        """
        loading = lease.loading
        if loading is None:
            return True
        if not loading.is_done:
            return False
        assert self.lower is not None
        assert lease.inquiry is not None
        lease.loading = None
        num_arrived = self.lower.receive(loading)
        if lease.generation.is_over:  # cleared meanwhile: nothing of it is to be found
            self._conclude(lease, Match([], self.trie.root(lease.inquiry.namespace), NONE, 0, None, False))
            return True
        self._writers.discard(lease)
        num_full = min(num_arrived, loading.covered // (self.block_size * TOKEN_BYTES))
        self._residents.publish_full(lease, lease.data[lease.committed * TOKEN_BYTES :], num_full)
        lease.reused = lease.committed
        if num_arrived == len(loading.entries):
            lease.reused += loading.covered // TOKEN_BYTES - num_full * self.block_size
        path = lease.table[: lease.committed // self.block_size]
        self._conclude(lease, match_below(self.trie, self.pool, path, lease.node, lease.data, self._clock.now()))
        return True

    def extend(self, lease: Lease, num_tokens: int) -> bool:
        """Make the table cover `num_tokens` positions; False, and nothing changed, when no room can be made."""
        needed = self._blocks_for(num_tokens) - len(lease.table)
        if needed <= 0:
            return True
        if not self._has_room(lease.tenant, needed):
            return False
        lease.table += self._take(needed, lease.tenant)
        return True

    def is_over_quota(self, lease: Lease, num_tokens: int) -> bool:
        """Whether `extend` fails because of what the tenant may hold, so that only leases of the same tenant matter."""
        return not self._is_allowed(lease.tenant, self._blocks_for(num_tokens) - len(lease.table))

    def commit(self, lease: Lease, tokens: Sequence[int], num_written: int) -> None:
        """KV of `tokens[:num_written]` is written and `lease.copies` are made: others may use it from now on.

        `tokens` begin with the lease's prompt; only those after the last full block committed are read.
        """
        assert lease.loading is None, "computed before everything was received"
        if lease.sources:
            self._residents.let_go(lease.sources, lease.tenant)
            lease.sources = []
        if lease.node == NONE or lease.generation.is_over:
            return
        assert lease.committed <= num_written <= len(lease.table) * self.block_size, "committed what cannot be written"
        self._writers.discard(lease)
        self._residents.withdraw_open(lease)
        data = token_bytes(tokens[lease.committed : num_written])
        num_full = len(data) // (self.block_size * TOKEN_BYTES)
        self._residents.publish_full(lease, data, num_full)
        self._residents.publish_open(lease, data[num_full * self.block_size * TOKEN_BYTES :])
        if num_written * TOKEN_BYTES < len(lease.data):
            self._writers.add(lease)
        else:
            lease.data = b""

    def release(self, lease: Lease) -> None:
        """Give everything back: what is committed stays cached, the rest is free. A second call does nothing.

        A load that is under way is stopped; what it has brought up is kept.
        """
        if lease.loading is not None:
            lease.loading.stop()
            self.receive(lease)
        if lease.node != NONE and not lease.generation.is_over:
            self._writers.discard(lease)
            if lease.marks:
                keep(self.pool, self.trie.path_to(lease.node), lease.marks, self.block_size, self.pin_budget)
            open_block = lease.open_block(self.block_size)
            if self.lower is not None and open_block != NONE and self.pool.states[open_block] == READY:
                self.lower.note(open_block, self.trie.digest_of(open_block))
        held = lease.sources + lease.extra + lease.table
        held.reverse()
        lease.table, lease.extra, lease.sources, lease.copies = [], [], [], ()
        lease.node = NONE
        self._residents.let_go(held, lease.tenant)

    def persist(self, limit: int) -> int:
        """Hand up to `limit` blocks to the lower tier ahead of their eviction; returns how many still wait."""
        return self.lower.persist(self.trie, limit) if self.lower is not None else 0

    def close(self) -> None:
        """Make everything that is cached survive where there is a lower tier, and let that go."""
        if self.lower is not None:
            self.lower.close(self.trie)

    def clear(self, namespace: Namespace | None = None) -> None:
        """Forget everything cached, in all tiers; given a `namespace`, what belongs to that.

        Running leases keep their blocks, but nobody else will find them.
        """
        for each in [*self._generations] if namespace is None else [namespace]:
            if generation := self._generations.pop(each, None):
                generation.is_over = True
        self._writers.discard_over()
        if namespace is None:
            self._residents.clear()
        else:
            self._residents.clear_namespace(namespace)

    # -- admission ----------------------------------------------------------------------------------------------------

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _tenant(self, name: str) -> int:
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = self.pool.add_tenant()
        return tenant

    def _has_room(self, tenant: int, needed: int, woken: int = 0) -> bool:
        """Whether `needed` blocks can be taken once `woken` idle ones are held. Every other idle block can go."""
        return needed <= self.pool.free + self.pool.idle - woken and self._is_allowed(tenant, needed, woken)

    def _is_allowed(self, tenant: int, needed: int, woken: int = 0) -> bool:
        """Whether the tenant may take `needed` blocks then, for which it gives up idle ones of its own."""
        if self.tenant_blocks is None:
            return True
        return self.pool.held[tenant] + needed - self.tenant_blocks <= self.pool.tenant_idle[tenant] - woken

    def _shortage(self, tenant: int, needed: int, woken: int = 0) -> OverQuota | None:
        """What to answer where there is no room."""
        return None if self._is_allowed(tenant, needed, woken) else OverQuota()

    def _take(self, count: int, tenant: int) -> list[int]:
        """Take blocks for which there is room, from this tenant's idle ones first if it would hold too many."""
        pool = self.pool
        if self.tenant_blocks is not None:
            excess = pool.held[tenant] + count - self.tenant_blocks
            if excess > 0:
                self.reclaimer.evict(excess, tenant)
        if count > pool.free:
            self.reclaimer.expire(self._clock.now())
            self.reclaimer.evict(count - pool.free)
        return pool.take(count, tenant)

    def _admit(
        self, match: Match, num_tokens: int, num_blocks: int, tenant: int, now: float, *, uses_source: bool
    ) -> Lease | OverQuota | None:
        """Hold what was matched, then take the rest; no lease, and nothing changed, if it does not fit.

        The last block in part: taken over if nobody holds it and nothing of it would be lost, otherwise copied.
        """
        pool, path, source = self.pool, match.path, match.source
        usable = min(match.num_common, num_tokens - 1 - len(path) * self.block_size) if uses_source else 0
        is_idle = usable > 0 and pool.states[source] == IDLE
        takes_over = is_idle and match.num_common == pool.sizes[source] and self.trie.children[source] == NONE
        woken = sum(pool.states[block] == IDLE for block in path)
        needed = num_blocks - len(path) - takes_over
        if not self._has_room(tenant, needed, woken + is_idle):
            if takes_over or not is_idle or not self._has_room(tenant, needed, woken):
                return self._shortage(tenant, needed, woken)
            usable = 0  # there is room only if the block to copy from is given up itself

        if path and pool.states[path[-1]] == IDLE:
            self.counters.reuse_gap.add(now - pool.used[path[-1]])
        held = [*path, source] if usable else path
        pool.pin(held, tenant)
        hits = pool.hits
        for block in held:
            hits[block] += 1
        if usable and takes_over:
            self._residents.shrink(source, match.node, usable)
        else:
            held = path
        table = held + self._take(needed, tenant)
        lease = Lease(table, tenant)
        lease.node = match.node
        lease.committed = len(path) * self.block_size
        lease.reused = lease.committed + usable
        if usable and not takes_over:
            lease.copies = (Copy(source, table[len(path)], usable),)
            lease.sources = [source]
        return lease

    def _being_written(self, match: Match, data: bytes) -> int:
        """How many tokens after the match's path, up to a block, a running lease is about to write; not the last."""
        start = len(match.path) * self.block_size
        end = min((start + self.block_size) * TOKEN_BYTES, len(data) - TOKEN_BYTES)
        return self._writers.common_tokens(match.node, start, data[start * TOKEN_BYTES : end])

    def _conclude(self, lease: Lease, match: Match) -> None:
        """It is certain now what the lease reuses: say why not more, count it, and let others wait for the rest."""
        assert lease.inquiry is not None
        namespace, segments, again = lease.inquiry
        lease.inquiry = None
        being_written = self._being_written(match, lease.data)
        graves = self._residents.graves
        lease.miss = explain(self.trie, graves, namespace, match, lease.data, lease.reused, segments, being_written)
        if not lease.generation.is_over:
            self._writers.add(lease)
        self._count(lease, len(lease.data) // TOKEN_BYTES, again)

    def _count(self, lease: Lease, num_tokens: int, again: bool) -> None:
        if again:
            return
        self.counters.lookups += 1
        self.counters.prompt_tokens += num_tokens
        self.counters.reused_tokens += lease.reused
        if lease.miss is not None:
            self.counters.misses[lease.miss.reason] += 1

    # -- the lower tier -----------------------------------------------------------------------------------------------

    def _find_below(self, match: Match, data: bytes) -> tuple[Sequence[TierEntry], int]:
        """What the lower tier holds of `data` beyond the match, if it is more than what RAM has of the next block."""
        if self.lower is None:
            return (), 0
        rest = data[len(match.path) * self.block_size * TOKEN_BYTES :]
        known = match.num_common * TOKEN_BYTES
        return self.lower.find(self.trie.digest_of(match.node), rest, self.block_size * TOKEN_BYTES, known)
