"""A pretend engine: it writes down, slot by slot, which tokens the KV in a block was computed from.

Every reuse is then checked for real: the slot must say exactly the tokens, from the first on, that the lease needs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvledger.cache import Lease, MissReason, Namespace, OverQuota, Pending, PromptCache, invariants
from kvledger.cache.digest import token_bytes
from kvledger.cache.events import Cleared, Stored
from kvledger.cache.pool import State
from kvledger.clock import ManualClock


def folder_in_memory() -> TemporaryDirectory[str]:
    """Where the system has one, a folder that lies in memory: thousands of synced files would wear out a disk."""
    memory = Path("/dev/shm")
    return TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


Slot = tuple[Namespace, tuple[int, ...]]


def space(tenant: str = "", **fields: str) -> Namespace:
    values = {"weights": "w", "tokenizer": "t", "adapter": "", "layout": "l", **fields}
    return Namespace(tenant=tenant, **values)


class Later(Executor):
    """Does what is submitted when told to, in order: threads that are never faster or slower than the test wants."""

    def __init__(self) -> None:
        self.tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.tasks.append((future, lambda: fn(*args, **kwargs)))
        return future

    def work(self, count: int = 1_000) -> None:
        for _ in range(min(count, len(self.tasks))):
            future, task = self.tasks.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:
                    future.set_exception(error)


@dataclass
class Sequence_:
    """A running request: its lease, all its tokens so far, and how many of them are written."""

    namespace: Namespace
    tokens: list[int]
    lease: Lease
    written: int
    cached: bool

    @property
    def is_loading(self) -> bool:
        return self.lease.loading is not None


@dataclass
class World:
    """A cache, the KV it keeps the books on, and the sequences that use it."""

    num_blocks: int = 16
    block_size: int = 4
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.kv: list[list[Slot | None]] = [[None] * self.block_size for _ in range(self.num_blocks)]
        self.running: list[Sequence_] = []
        self.resident: set[bytes] = set()
        self.last_event = 0
        self.start()

    def start(self) -> None:
        self.cache = PromptCache(
            self.num_blocks, block_size=self.block_size, bytes_per_block=64, clock=self.clock, **self.options
        )

    def admit(
        self, namespace: Namespace, tokens: Sequence[int], **options: Any
    ) -> Sequence_ | Pending | OverQuota | None:
        """Acquire, make the copies, and check every reused slot."""
        possible = self.possible(namespace, tokens)
        lease = self.cache.acquire(namespace, tokens, **options)
        if not isinstance(lease, Lease):
            return lease
        for copy in lease.copies:
            self.kv[copy.dst][: copy.num_tokens] = self.kv[copy.src][: copy.num_tokens]
        cached = options.get("use_cache", True) and self.cache.enabled
        sequence = Sequence_(namespace, list(tokens), lease, lease.reused, cached)
        self.running.append(sequence)
        self.check_slots(sequence)
        assert 0 <= lease.reused <= len(tokens) - 1
        if sequence.is_loading:
            assert lease.miss is None
            return sequence
        if not cached:
            assert lease.reused == 0
        elif self.cache.lower is None and lease.reused < possible:
            assert lease.miss is not None
            assert lease.miss.reason in (MissReason.EVICTED, MissReason.NOT_YET_WRITTEN)  # there was no room to copy
            assert lease.reused == possible // self.block_size * self.block_size
        assert lease.miss is None or lease.miss.position == lease.reused or len(tokens) == 1 or not cached
        return sequence

    def receive(self, sequence: Sequence_) -> bool:
        """Look whether a load is done; then every slot it brought must be right."""
        if not sequence.is_loading:
            return True
        if not self.cache.receive(sequence.lease):
            return False
        assert sequence.written <= sequence.lease.reused <= len(sequence.tokens) - 1
        sequence.written = sequence.lease.reused
        self.check_slots(sequence)
        return True

    def possible(self, namespace: Namespace, tokens: Sequence[int]) -> int:
        """The longest stretch of `tokens`, but for the last, that the trie holds: found the slow way."""
        trie, pool, now = self.cache.trie, self.cache.pool, self.clock.now()
        rest = token_bytes(tokens[:-1])
        node, total = trie.root(namespace), 0
        while True:
            best, best_child = 0, -1
            for child in trie.children_of(node):
                if pool.is_expired(child, now):
                    continue
                have = trie.tokens_of(child)
                count = next(
                    (i for i in range(len(have) // 4) if have[4 * i : 4 * i + 4] != rest[4 * i : 4 * i + 4]),
                    len(have) // 4,
                )
                if count > best:
                    best, best_child = count, child
            total += best
            if best < self.block_size:
                return total
            node, rest = best_child, rest[4 * best :]

    def write(self, sequence: Sequence_, count: int) -> bool:
        """Compute up to `count` tokens and commit them; False if the table cannot be extended that far."""
        end = min(sequence.written + count, len(sequence.tokens))
        if not self.cache.extend(sequence.lease, end):
            return False
        for position in range(sequence.written, end):
            block = sequence.lease.table[position // self.block_size]
            self.kv[block][position % self.block_size] = (sequence.namespace, tuple(sequence.tokens[: position + 1]))
        sequence.written = end
        self.cache.commit(sequence.lease, sequence.tokens, end)
        return True

    def finish(self, sequence: Sequence_) -> None:
        self.running.remove(sequence)
        self.cache.release(sequence.lease)

    def serve(self, namespace: Namespace, tokens: Sequence[int], **options: Any) -> Lease:
        """A whole request, alone; returns its lease."""
        sequence = self.admit(namespace, tokens, **options)
        assert isinstance(sequence, Sequence_), sequence
        assert self.receive(sequence)
        assert self.write(sequence, len(tokens))
        self.finish(sequence)
        self.check()
        return sequence.lease

    def check_slots(self, sequence: Sequence_) -> None:
        for position in range(sequence.written):
            block = sequence.lease.table[position // self.block_size]
            expected = (sequence.namespace, tuple(sequence.tokens[: position + 1]))
            assert self.kv[block][position % self.block_size] == expected

    def check(self) -> None:
        """Every invariant, every slot of every running sequence, every slot of every cached block, every event."""
        invariants.check(self.cache, [sequence.lease for sequence in self.running])
        for sequence in self.running:
            self.check_slots(sequence)
        trie = self.cache.trie
        for spaces in trie.roots.values():
            for namespace, root in spaces.items():
                self.check_cached(namespace, root, b"")
        self.replay_events()

    def check_cached(self, namespace: Namespace, node: int, before: bytes) -> None:
        for child in self.cache.trie.children_of(node):
            data = before + self.cache.trie.tokens_of(child)
            tokens = [int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data), 4)]
            for offset in range((len(data) - len(before)) // 4):
                assert self.kv[child][offset] == (namespace, tuple(tokens[: len(before) // 4 + offset + 1]))
            self.check_cached(namespace, child, data)

    def replay_events(self) -> None:
        """A consumer of the events holds exactly the full blocks that are resident."""
        log = self.cache.events
        if log is None:
            return
        news = log.since(self.last_event)
        assert news is not None
        for event in news:
            self.last_event += 1
            assert event.number == self.last_event
            if isinstance(event, Stored):
                assert not self.resident & set(event.digests)
                self.resident |= set(event.digests)
            elif isinstance(event, Cleared):
                self.resident.clear()
            else:
                assert self.resident >= set(event.digests)
                self.resident -= set(event.digests)
        pool, trie = self.cache.pool, self.cache.trie
        cached = [b for b, s in enumerate(pool.states) if s in (State.READY, State.IDLE)]
        full = {bytes(trie.digest_of(b)) for b in cached if pool.sizes[b] == self.block_size}
        assert self.resident == full
