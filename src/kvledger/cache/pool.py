"""Who has each block: states, reference counts, the free list, and what eviction needs to know.

    FREE --take--> OWNED --publish--> READY --unpin--> IDLE --pin--> READY
      ^              ^                  |                |
      +----unpin-----+-----retract------+                |
      +---------------------retract----------------------+

OWNED: a lease computes it; nobody else can see it. READY: in the trie, and some lease holds it. IDLE: in the trie,
held by nobody, evictable. A lease counts once in `refs` of every block it holds.

Everything is kept in flat arrays indexed by block, a few bytes each; a million blocks make no million objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from enum import IntEnum


class State(IntEnum):
    """Where a block is in its life."""

    FREE = 0
    OWNED = 1
    READY = 2
    IDLE = 3


FREE, OWNED, READY, IDLE = (int(state) for state in State)


class BlockPool:
    """The blocks `0 .. num_blocks - 1`. `free + owned + ready + idle == num_blocks` after every method."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        ints, longs = bytes(4 * num_blocks), bytes(8 * num_blocks)
        self.states = bytearray(num_blocks)
        self.refs = array("i", ints)
        self.tenants = array("i", ints)
        self.pinned = bytearray(num_blocks)
        """1 while a mark asks to keep the block longest."""
        self.hits = array("i", ints)
        """Leases that found the block since it was taken."""
        self.positions = array("i", ints)
        """Tokens before the block in its sequence."""
        self.sizes = array("i", ints)
        """Tokens of the block that are in the trie: the block size, or less for an open one."""
        self.ticks = array("q", longs)
        """The order in which blocks became idle: recency without ties between leases."""
        self.stored = array("d", longs)
        """When the block was published. Seconds."""
        self.used = array("d", longs)
        """When the block last became idle. Seconds."""
        self.ttl = array("d", longs)
        """How long the block may stay idle. Seconds; infinite for ever."""
        self.floor = 0.0
        """The highest worth of any victim so far: what a policy that lets old worth fade starts from."""

        self._free = array("i", range(num_blocks - 1, -1, -1))
        self.owned = 0
        self.ready = 0
        self.idle = 0
        self.num_pinned = 0
        self.held: list[int] = []
        """Blocks that are not free, by tenant."""
        self.tenant_idle: list[int] = []
        """Idle blocks, by tenant."""

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return len(self._free)

    @property
    def free_blocks(self) -> list[int]:
        """The free blocks, the next to be taken last."""
        return self._free.tolist()

    def add_tenant(self) -> int:
        """A new tenant's index in `held` and `tenant_idle`."""
        self.held.append(0)
        self.tenant_idle.append(0)
        return len(self.held) - 1

    def take(self, count: int, tenant: int) -> list[int]:
        """FREE -> OWNED. The caller has made sure that `count` blocks are free."""
        assert count <= len(self._free), "took more blocks than are free"
        if not count:
            return []
        taken = self._free[-count:].tolist()
        del self._free[-count:]
        states, refs, tenants, hits = self.states, self.refs, self.tenants, self.hits
        for block in taken:
            states[block] = OWNED
            refs[block] = 1
            tenants[block] = tenant
            hits[block] = 0
        self.owned += count
        self.held[tenant] += count
        taken.reverse()
        return taken

    def pin(self, blocks: Iterable[int], tenant: int) -> None:
        """Hold blocks of the trie once more: IDLE -> READY where they were idle. All belong to `tenant`."""
        states, refs = self.states, self.refs
        woken = 0
        for block in blocks:
            if refs[block]:
                refs[block] += 1
            else:
                refs[block] = 1
                states[block] = READY
                woken += 1
        self.idle -= woken
        self.ready += woken
        self.tenant_idle[tenant] -= woken

    def unpin(self, blocks: Iterable[int], tenant: int, tick: int, now: float) -> list[int]:
        """Hold blocks once less: READY -> IDLE or OWNED -> FREE for the last holder. Returns those that became idle."""
        states, refs, ticks, used, free = self.states, self.refs, self.ticks, self.used, self._free
        slept: list[int] = []
        freed = -len(free)
        for block in blocks:
            left = refs[block] - 1
            refs[block] = left
            if left:
                continue
            if states[block] == READY:
                states[block] = IDLE
                ticks[block] = tick
                used[block] = now
                slept.append(block)
            else:
                states[block] = FREE
                free.append(block)
        freed += len(free)
        self.owned -= freed
        self.held[tenant] -= freed
        self.ready -= len(slept)
        self.idle += len(slept)
        self.tenant_idle[tenant] += len(slept)
        return slept

    def publish(self, blocks: Iterable[int], position: int, size: int, now: float, ttl: float) -> None:
        """OWNED -> READY for blocks that entered the trie with `size` tokens each, the first at `position`."""
        states, positions, sizes, stored, ttls = self.states, self.positions, self.sizes, self.stored, self.ttl
        published = 0
        for block in blocks:
            states[block] = READY
            positions[block] = position
            sizes[block] = size
            stored[block] = now
            ttls[block] = ttl
            position += size
            published += 1
        self.owned -= published
        self.ready += published

    def retract(self, block: int) -> None:
        """The block left the trie: READY -> OWNED, or IDLE -> FREE."""
        if self.states[block] == IDLE:
            self.drop((block,))
            return
        self.states[block] = OWNED
        self.ready -= 1
        self.owned += 1
        self.num_pinned -= self.pinned[block]
        self.pinned[block] = 0

    def drop(self, run: Sequence[int]) -> None:
        """IDLE -> FREE for blocks of one tenant that left the trie."""
        states, pinned = self.states, self.pinned
        for block in run:
            states[block] = FREE
            if pinned[block]:
                pinned[block] = 0
                self.num_pinned -= 1
        self._free.extend(run)
        tenant = self.tenants[run[0]]
        self.idle -= len(run)
        self.held[tenant] -= len(run)
        self.tenant_idle[tenant] -= len(run)

    def is_expired(self, block: int, now: float) -> bool:
        """Whether the block is idle and has been so for its whole time to live."""
        return self.states[block] == IDLE and self.used[block] + self.ttl[block] <= now
