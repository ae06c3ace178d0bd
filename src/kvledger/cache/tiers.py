"""Lower tiers: blocks that left RAM, or will, kept where they survive. Bytes only; what they mean is the engine's.

Blocks go down ahead of time (`persist`, a few per step) so that a crash loses little, and at the latest when they are
evicted. They come up again in `acquire`, if loading them is cheaper than computing them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvledger.cache.digest import TOKEN_BYTES, Digest, block_digest
from kvledger.cache.trie import PARENT_BYTES, Trie

GROUP_BLOCKS = 16
"""Blocks handed to a tier at a time."""

_MAX_WAITING = 1 << 16
"""Notes kept of blocks to persist; a block whose note is lost goes down when it is evicted."""


@dataclass(frozen=True)
class TierBlock:
    """One block on its way down: the digest of what comes before it, its token bytes, its KV as opaque bytes."""

    parent: Digest
    tokens: bytes
    payload: bytes

    def digest(self) -> Digest:
        return block_digest(self.parent, self.tokens)


class TierEntry(Protocol):
    """A block that a tier holds."""

    @property
    def size(self) -> int:
        """Bytes to load."""
        ...


class Tier(Protocol):
    """A store of blocks by digest. Nothing is found before it is completely and durably written."""

    bytes_held: int
    """Bytes in use, everything included; never above the tier's limit."""

    def holds(self, digest: Digest) -> bool:
        """Whether the block is there, or on its way."""
        ...

    def find(self, parent: Digest, data: bytes, block_bytes: int) -> tuple[Sequence[TierEntry], int]:
        """The entries that hold `data` after `parent`, as many as follow each other without a gap.

        All but the last cover `block_bytes` of `data` each; the last may cover less. Also returns the number of bytes
        of `data` covered in all. Tokens are compared exactly.
        """
        ...

    def load(self, entry: TierEntry) -> bytes | None:
        """The payload of an entry, or None if it is not exactly what was put; the reason is logged."""
        ...

    def put(self, blocks: Sequence[TierBlock]) -> bool:
        """Take blocks over; False if there is no room for them. They can be found once they are safe."""
        ...

    def clear(self) -> None:
        """Forget everything."""
        ...


@dataclass(frozen=True)
class Rates:
    """How fast KV comes back, measured on this machine: read from the tier (bytes/s) or computed anew (tokens/s)."""

    load_bytes: float
    compute_tokens: float

    def prefers_loading(self, num_bytes: int, num_tokens: int) -> bool:
        """Whether reading `num_bytes` takes less time than computing `num_tokens`."""
        return num_bytes * self.compute_tokens < num_tokens * self.load_bytes


class LowerTier:
    """A tier, wired to the KV pool: `read_block(i)` gives the bytes of pool block i, `write_block(i, bytes)` sets them.

    `rates` is the engine's to measure and keep up to date; nothing is loaded while it is None.
    """

    def __init__(
        self,
        tier: Tier,
        *,
        read_block: Callable[[int], bytes],
        write_block: Callable[[int, bytes], None],
        rates: Rates | None = None,
    ) -> None:
        self.tier = tier
        self.rates = rates
        self._read_block = read_block
        self._write_block = write_block
        self._waiting: deque[tuple[int, Digest]] = deque(maxlen=_MAX_WAITING)
        self.loaded_blocks = 0
        self.stored_blocks = 0
        self.failed_loads = 0

    def note(self, block: int, digest: Digest) -> None:
        """A block was published: persist it in its turn."""
        if not self.tier.holds(digest):
            self._waiting.append((block, digest))

    def persist(self, trie: Trie, limit: int) -> int:
        """Hand down up to `limit` published blocks, oldest first; returns how many still wait.

        What the tier refuses is not offered again until it is evicted.
        """
        group: list[TierBlock] = []
        while self._waiting and limit:
            block, digest = self._waiting.popleft()
            if trie.keys[block] is not None and trie.digest_of(block) == digest and not self.tier.holds(digest):
                self._add(group, trie, block, trie.tokens_of(block))
                limit -= 1
        self._put(group)
        return len(self._waiting)

    def demote(self, trie: Trie, run: Sequence[int], keys: Sequence[bytes]) -> None:
        """Hand down blocks that have just left the trie, deepest first as given, unless the tier holds them."""
        group: list[TierBlock] = []
        for block, key in zip(reversed(run), reversed(keys), strict=True):
            if not self.tier.holds(trie.digest_of(block)):
                self._add(group, trie, block, key[PARENT_BYTES:])
        self._put(group)

    def find(self, parent: Digest, data: bytes, block_bytes: int) -> tuple[Sequence[TierEntry], int]:
        """What the tier holds of `data` after `parent`, if loading it is worthwhile; else nothing."""
        if self.rates is None:
            return (), 0
        entries, covered = self.tier.find(parent, data, block_bytes)
        if not self.rates.prefers_loading(sum(entry.size for entry in entries), covered // TOKEN_BYTES):
            return (), 0
        return entries, covered

    def load(self, entry: TierEntry, block: int) -> bool:
        """Bring an entry's bytes into pool block `block`."""
        payload = self.tier.load(entry)
        if payload is None:
            self.failed_loads += 1
            return False
        self._write_block(block, payload)
        self.loaded_blocks += 1
        return True

    def clear(self) -> None:
        self._waiting.clear()
        self.tier.clear()

    def _add(self, group: list[TierBlock], trie: Trie, block: int, tokens: bytes) -> None:
        """Read a block's payload into `group`, and pass the group on when it is complete."""
        group.append(TierBlock(trie.digest_of(trie.parents[block]), tokens, self._read_block(block)))
        if len(group) == GROUP_BLOCKS:
            self._put(group)

    def _put(self, group: list[TierBlock]) -> None:
        if group and self.tier.put(group):
            self.stored_blocks += len(group)
        group.clear()
