"""Lower tiers: blocks that left RAM, or will, kept where they survive. Bytes only; what they mean is the engine's.

Blocks go down ahead of time (`persist`, a few per step) so that a crash loses little, and at the latest when they are
evicted. They come up again for a lease that `acquire` hands out, if loading them is cheaper than computing them again:
workers read them into blocks that the lease owns already, while everybody else goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Protocol

from kvledger.cache.digest import TOKEN_BYTES, Digest, block_digest
from kvledger.cache.trie import PARENT_BYTES, Trie
from kvledger.clock import Clock

GROUP_BLOCKS = 16
"""Blocks that go to or come from a tier at a time."""

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

    @property
    def is_busy(self) -> bool:
        """Much of what was put is still being written: what can wait should."""
        ...

    def holds(self, digest: Digest) -> bool:
        """Whether the block is there, or on its way."""
        ...

    def find(self, parent: Digest, data: bytes, block_bytes: int) -> tuple[Sequence[TierEntry], int]:
        """The entries that hold `data` after `parent`, as many as follow each other without a gap.

        All but the last cover `block_bytes` of `data` each; the last may cover less. Also returns the number of bytes
        of `data` covered in all. Tokens are compared exactly.
        """
        ...

    def read(self, entry: TierEntry) -> bytes:
        """The payload of an entry, exactly as it was put; any thread may ask. Raises `OSError` or `ValueError` if it
        cannot be had."""
        ...

    def drop(self, entry: TierEntry, reason: str) -> None:
        """An entry could not be read: log the reason, and forget it with everything that lies with it."""
        ...

    def put(self, blocks: Sequence[TierBlock]) -> bool:
        """Take blocks over; False if there is no room for them. They can be found once they are safe."""
        ...

    def flush(self) -> None:
        """Wait until everything that was put is safe."""
        ...

    def clear(self, root: Digest | None = None) -> None:
        """Forget everything, or all that follows a namespace's `root`, and perhaps what lies with it."""
        ...

    def close(self) -> None:
        """Finish writing, and hold nothing any longer."""
        ...


class Rates:
    """How fast KV comes back on this machine: read from the tier (bytes/s) or computed anew (tokens/s).

    Both are measured as it happens, recent measurements counting most. While one is unknown, loading is preferred:
    nothing else would measure it.
    """

    def __init__(self, load_bytes: float | None = None, compute_tokens: float | None = None) -> None:
        self.load_bytes = load_bytes
        self.compute_tokens = compute_tokens

    def add_load(self, num_bytes: int, seconds: float) -> None:
        """`num_bytes` were loaded in `seconds`."""
        self.load_bytes = _blend(self.load_bytes, num_bytes, seconds)

    def add_compute(self, num_tokens: int, seconds: float) -> None:
        """A step over `num_tokens`, most of them of prompts, took `seconds`."""
        self.compute_tokens = _blend(self.compute_tokens, num_tokens, seconds)

    def doubt(self) -> None:
        """Loading was not worth it: what is never tried again is never measured again, so let it look a bit faster."""
        if self.load_bytes is not None:
            self.load_bytes *= 1.05

    def prefers_loading(self, num_bytes: int, num_tokens: int) -> bool:
        """Whether reading `num_bytes` takes less time than computing `num_tokens`."""
        if self.load_bytes is None or self.compute_tokens is None:
            return True
        return num_bytes * self.compute_tokens < num_tokens * self.load_bytes


def _blend(rate: float | None, amount: int, seconds: float) -> float | None:
    if seconds <= 0:
        return rate
    return amount / seconds if rate is None else 0.7 * rate + 0.3 * amount / seconds


class Loading:
    """Entries on their way into pool blocks: `blocks[i]` gets `entries[i]`.

    Workers fill the blocks, so nobody else may touch them, or give them away, before `is_done`. `covered` is the number
    of bytes of tokens that the entries hold of the prompt. Times are in seconds on the monotonic clock.
    """

    def __init__(self, entries: Sequence[TierEntry], covered: int, blocks: Sequence[int], start: float) -> None:
        assert len(entries) == len(blocks), "an entry needs a block to go to"
        self.entries = entries
        self.covered = covered
        self.blocks = blocks
        self.start = start
        self.end = start
        self.arrived = bytearray(len(entries))
        self.failures: list[tuple[TierEntry, str]] = []
        self.work: list[Future[None]] = []
        self.is_stopped = False

    @property
    def is_done(self) -> bool:
        """Nothing more will arrive."""
        return all(future.done() for future in self.work)

    @property
    def num_arrived(self) -> int:
        """Entries that are in their blocks, up to the first that is not."""
        missing = self.arrived.find(0)
        return len(self.entries) if missing < 0 else missing

    def stop(self) -> None:
        """Go no further than the entries that are being read right now, and wait for those."""
        self.is_stopped = True
        wait([future for future in self.work if not future.cancel()])


class LowerTier:
    """A tier, wired to the KV pool: `read_block(i)` gives the bytes of pool block i, `write_block(i, bytes)` sets them.

    Blocks are loaded by `readers`, or at once where there are none. `rates` says when loading pays: it measures loads
    itself, the engine tells it how fast it computes. `notify` is called on a reader's thread when a load makes headway.
    """

    def __init__(
        self,
        tier: Tier,
        *,
        read_block: Callable[[int], bytes],
        write_block: Callable[[int, bytes], None],
        readers: Executor | None = None,
        rates: Rates | None = None,
    ) -> None:
        self.tier = tier
        self.rates = rates or Rates()
        self.notify: Callable[[], None] = lambda: None
        self._read_block = read_block
        self._write_block = write_block
        self._readers = readers
        self._waiting: deque[tuple[int, Digest]] = deque(maxlen=_MAX_WAITING)
        self.loaded_blocks = 0
        self.stored_blocks = 0
        self.failed_loads = 0

    @property
    def num_waiting(self) -> int:
        """Published blocks that are yet to be persisted."""
        return len(self._waiting)

    def note(self, block: int, digest: Digest) -> None:
        """A block was published: persist it in its turn."""
        if not self.tier.holds(digest):
            self._waiting.append((block, digest))

    def persist(self, trie: Trie, limit: int) -> int:
        """Hand down up to `limit` published blocks, oldest first, unless the tier is busy; returns how many still wait.

        What the tier refuses is not offered again until it is evicted.
        """
        group: list[TierBlock] = []
        while self._waiting and limit and not self.tier.is_busy:
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

    def find(self, parent: Digest, data: bytes, block_bytes: int, known: int) -> tuple[Sequence[TierEntry], int]:
        """What the tier holds of `data` after `parent`, and how much of it, if loading that is worthwhile.

        Of `data`, `known` bytes need no loading.
        """
        entries, covered = self.tier.find(parent, data, block_bytes)
        if covered <= known:
            return (), 0
        if not self.rates.prefers_loading(sum(entry.size for entry in entries), (covered - known) // TOKEN_BYTES):
            self.rates.doubt()
            return (), 0
        return entries, covered

    def load(self, entries: Sequence[TierEntry], covered: int, blocks: Sequence[int], clock: Clock) -> Loading:
        """Begin to bring entries up into pool blocks."""
        loading = Loading(entries, covered, blocks, clock.monotonic())
        for first in range(0, len(entries), GROUP_BLOCKS):
            if self._readers is None:
                self._load_group(loading, first, clock)
            else:
                future = self._readers.submit(self._load_group, loading, first, clock)
                future.add_done_callback(lambda _: self.notify())
                loading.work.append(future)
        return loading

    def receive(self, loading: Loading) -> int:
        """Account for a load that is done; returns how many entries have arrived without a gap."""
        for entry, reason in loading.failures:
            self.failed_loads += 1
            self.tier.drop(entry, reason)
        count = loading.num_arrived
        self.loaded_blocks += count
        if count == len(loading.entries):
            self.rates.add_load(sum(entry.size for entry in loading.entries), loading.end - loading.start)
        return count

    def clear(self, root: Digest | None = None) -> None:
        """Forget everything, or all that follows a namespace's `root`."""
        self.tier.clear(root)

    def close(self, trie: Trie) -> None:
        """Hand down whatever still waits, and let the tier go."""
        while self.persist(trie, GROUP_BLOCKS):
            if self.tier.is_busy:
                self.tier.flush()
        self.tier.close()

    def _load_group(self, loading: Loading, first: int, clock: Clock) -> None:
        """Bring up a group of entries, one after the other, as far as that goes."""
        for index in range(first, min(first + GROUP_BLOCKS, len(loading.entries))):
            if loading.is_stopped:
                break
            entry = loading.entries[index]
            try:
                self._write_block(loading.blocks[index], self.tier.read(entry))
            except Exception as error:  # whatever it is, what is not loaded is computed
                loading.failures.append((entry, str(error)))
                break
            loading.arrived[index] = 1
        loading.end = clock.monotonic()

    def _add(self, group: list[TierBlock], trie: Trie, block: int, tokens: bytes) -> None:
        """Read a block's payload into `group`, and pass the group on when it is complete."""
        group.append(TierBlock(trie.digest_of(trie.parents[block]), tokens, self._read_block(block)))
        if len(group) == GROUP_BLOCKS:
            self._put(group)

    def _put(self, group: list[TierBlock]) -> None:
        if group and self.tier.put(group):
            self.stored_blocks += len(group)
        group.clear()
