"""A lower tier that holds no bytes, only which blocks are there: enough to know what it would have had."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.cache.digest import Digest, block_digest
from kvledger.cache.tiers import TierBlock, TierEntry


@dataclass(frozen=True, slots=True)
class _Held:
    """A block of the tier; `size` is that of its payload."""

    digest: Digest
    parent: Digest
    size: int = 0


class MemoryTier:
    """At most `num_blocks` blocks (None: no limit); the least recently stored or found goes first, leaves first.

    A block that is loaded stays, as it does on disk: what is in RAM may be here as well.
    """

    def __init__(self, num_blocks: int | None) -> None:
        self.bytes_held = 0
        self.is_busy = False
        self._num_blocks = num_blocks
        self._held: OrderedDict[Digest, _Held] = OrderedDict()

    def holds(self, digest: Digest) -> bool:
        return digest in self._held

    def find(self, parent: Digest, data: bytes, block_bytes: int) -> tuple[Sequence[TierEntry], int]:
        found: list[_Held] = []
        for start in range(0, len(data) - block_bytes + 1, block_bytes):
            entry = self._held.get(block_digest(parent, data[start : start + block_bytes]))
            if entry is None:
                break
            found.append(entry)
            parent = entry.digest
        self._use(parent)
        return found, len(found) * block_bytes

    def read(self, entry: TierEntry) -> bytes:
        return b""

    def drop(self, entry: TierEntry, reason: str) -> None:
        raise AssertionError(f"nothing can be wrong with what holds no bytes: {reason}")

    def put(self, blocks: Sequence[TierBlock]) -> bool:
        for block in blocks:
            digest = block.digest()
            self._held[digest] = _Held(digest, block.parent)
            self._use(digest)
        while self._num_blocks is not None and len(self._held) > self._num_blocks:
            self._held.popitem(last=False)
        return True

    def flush(self) -> None:
        """Everything is safe as soon as it is put."""

    def clear(self, root: Digest | None = None) -> None:
        self._held.clear()

    def close(self) -> None:
        """Nothing is open."""

    def _use(self, digest: Digest) -> None:
        """Make a block and what is here of its ancestors the most recent, ancestors last: they outlive it."""
        while (entry := self._held.get(digest)) is not None:
            self._held.move_to_end(digest)
            digest = entry.parent
