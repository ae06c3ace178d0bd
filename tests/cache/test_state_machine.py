"""Acquire, commit, decode, preempt, abort, evict, expire, clear, load, persist, restart: no order breaks a law."""

from __future__ import annotations

import pickle
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvledger.cache import Lease, OverQuota, Pending
from kvledger.cache.disk import DiskTier
from kvledger.cache.events import EventLog
from kvledger.cache.eviction import LFU, LRU, Belady, CostAware
from kvledger.cache.retention import BOOKKEEPING_BYTES
from kvledger.cache.tiers import LowerTier, Rates
from kvledger.text.prompt import Mark
from tests.cache.world import Later, Sequence_, World, folder_in_memory, space

SPACES = [space("a"), space("b"), space("a", adapter="x")]
PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=18),
    st.builds(
        lambda length, tail: ([0, 1, 1] * 6)[:length] + tail[:2], st.integers(6, 16), st.lists(st.integers(0, 1))
    ),
)
RARELY = st.integers(0, 4).map(lambda number: number == 4)
BLOCK_COST = 64 + BOOKKEEPING_BYTES


class CacheMachine(RuleBasedStateMachine):
    """Small tokens, small blocks and a small pool, so that everything meets everything."""

    has_disk = False
    writes_later = False

    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 4),
        policy=st.sampled_from([LRU(), LFU(), CostAware(8.0), Belady({})]),
        ttl=st.sampled_from([5.0, None]),
        tenant_blocks=st.sampled_from([None, None, 3, 6]),
        pin_share=st.sampled_from([0.0, 0.3, 1.0]),
        earlier=st.lists(PROMPTS, max_size=6),
    )
    def begin(self, num_blocks, block_size, policy, ttl, tenant_blocks, pin_share, earlier):
        self.folder = folder_in_memory()
        options = {"policy": policy, "ttl": ttl, "pin_share": pin_share, "events": EventLog()}
        if tenant_blocks is not None:
            options["tenant_bytes"] = tenant_blocks * BLOCK_COST
        self.world = World(num_blocks, block_size, options)
        self.open_disk()
        self.serve(SPACES[0], earlier)

    def open_disk(self):
        if not self.has_disk:
            return
        self.readers, self.writer = Later(), Later() if self.writes_later else None
        self.disk = DiskTier(Path(self.folder.name), "model", limit_bytes=30_000, executor=self.writer)

        def write_block(block, payload):
            self.world.kv[block] = pickle.loads(payload)

        self.world.options["lower"] = LowerTier(
            self.disk,
            read_block=lambda block: pickle.dumps(self.world.kv[block]),
            write_block=write_block,
            readers=self.readers,
            rates=Rates(load_bytes=1e9, compute_tokens=1.0),
        )
        self.world.start()

    @rule(
        namespace=st.sampled_from(SPACES),
        tokens=PROMPTS,
        reserve=st.integers(0, 4),
        mark=st.sampled_from([None, 2.0, 20.0]),
        use_cache=st.integers(0, 9).map(bool),
    )
    def admit(self, namespace, tokens, reserve, mark, use_cache):
        if not self.world.cache.fits(len(tokens) + reserve):
            return
        marks = [] if mark is None else [Mark(len(tokens), mark)]
        before = self.world.cache.counters.lookups
        result = self.world.admit(namespace, tokens, reserve=reserve, marks=marks, use_cache=use_cache)
        is_decided = isinstance(result, Sequence_) and not result.is_loading
        assert self.world.cache.counters.lookups == before + is_decided
        if isinstance(result, Pending):
            assert any(sequence.written < len(sequence.tokens) for sequence in self.world.running)
        if result is None:
            assert self.world.running
        if result == OverQuota():
            assert any(sequence.namespace.tenant == namespace.tenant for sequence in self.world.running)

    @rule(namespace=st.sampled_from(SPACES), prompts=st.lists(PROMPTS, min_size=1, max_size=6))
    def serve(self, namespace, prompts):
        """Requests from beginning to end, with nobody else's turn in between."""
        for tokens in prompts:
            if not self.world.cache.fits(len(tokens)):
                continue
            sequence = self.world.admit(namespace, tokens)
            if isinstance(sequence, Sequence_):
                self.finish_loads()
                assert self.world.receive(sequence)
                assert self.world.write(sequence, len(tokens))
                self.world.finish(sequence)
                self.world.check()

    def finish_loads(self):
        """The readers do all their work."""

    def end_writing(self):
        """The writer does all its work."""

    @precondition(lambda self: self.world.running)
    @rule(pick=st.integers(0), count=st.integers(1, 9))
    def write(self, pick, count):
        if self.world.receive(sequence := self.pick(pick)):
            self.world.write(sequence, count)

    @precondition(lambda self: self.world.running)
    @rule(pick=st.integers(0), token=st.integers(0, 1))
    def decode(self, pick, token):
        sequence = self.pick(pick)
        if not sequence.is_loading and sequence.written == len(sequence.tokens):
            sequence.tokens.append(token)
            self.world.write(sequence, 1)

    @precondition(lambda self: self.world.running)
    @rule(pick=st.integers(0))
    def release(self, pick):
        sequence = self.pick(pick)
        self.world.finish(sequence)
        self.world.cache.release(sequence.lease)

    @precondition(lambda self: self.world.running)
    @rule(pick=st.integers(0))
    def preempt(self, pick):
        sequence = self.pick(pick)
        self.world.finish(sequence)
        before = self.world.cache.counters.lookups, self.world.cache.counters.reused_tokens
        self.world.admit(sequence.namespace, sequence.tokens, again=True, use_cache=sequence.cached)
        assert before == (self.world.cache.counters.lookups, self.world.cache.counters.reused_tokens)

    @rule(count=st.integers(1, 14))
    def press(self, count):
        """Make room for something that leaves nothing behind."""
        lease = self.world.cache.acquire(SPACES[1], [0] * count, use_cache=False)
        if isinstance(lease, Lease):
            self.world.cache.release(lease)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 30.0]))
    def wait(self, seconds):
        self.world.clock.advance(seconds)

    @rule(is_time=RARELY)
    def clear(self, is_time):
        if is_time:
            self.end_writing()  # clearing waits for the writer
            self.world.cache.clear()

    @invariant()
    def laws(self):
        if hasattr(self, "world"):
            self.world.check()

    def pick(self, number: int) -> Sequence_:
        return self.world.running[number % len(self.world.running)]

    def teardown(self):
        if hasattr(self, "world"):
            for sequence in list(self.world.running):
                self.world.finish(sequence)
            self.world.check()
            assert self.world.cache.pool.owned == self.world.cache.pool.ready == 0
            self.folder.cleanup()


class DiskMachine(CacheMachine):
    """The same with a disk tier under it."""

    has_disk = True

    def finish_loads(self):
        self.readers.work()

    @precondition(lambda self: self.is_loading())
    @rule(count=st.integers(1, 3))
    def read(self, count):
        """The readers come to do some of their work."""
        self.readers.work(count)

    @precondition(lambda self: self.is_loading())
    @rule()
    def receive(self):
        """A load is asked for as often as one likes, and a lookup is counted when it is over."""
        counters = self.world.cache.counters
        for sequence in self.world.running:
            before = counters.lookups
            was_loading = sequence.is_loading
            is_there = self.world.receive(sequence)
            assert counters.lookups - before <= (was_loading and is_there)

    @precondition(lambda self: self.is_loading())
    @rule()
    def stop(self):
        """A load whose lease is released on the way."""
        self.world.finish(next(sequence for sequence in self.world.running if sequence.is_loading))

    def is_loading(self):
        return any(sequence.is_loading for sequence in self.world.running)

    @rule(limit=st.sampled_from([1, 3, 99]))
    def persist(self, limit):
        self.world.cache.persist(limit)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def written(self):
        """The writer comes to do its work."""
        self.writer.work()

    @rule(writes_later=st.booleans(), is_orderly=st.booleans(), is_time=RARELY)
    def restart(self, writes_later, is_orderly, is_time):
        if not is_time:
            return
        if is_orderly:
            self.world.cache.persist(1000)
        self.end_writing()
        self.disk.close()
        self.writes_later = writes_later
        self.world.running.clear()
        self.world.resident.clear()
        self.world.last_event = 0
        self.world.options["events"] = EventLog()
        self.open_disk()

    def end_writing(self):
        if self.writer is not None:
            self.writer.work()

    @rule(first=st.integers(0, 3))
    def corrupt(self, first):
        """Flip a byte of some file: a miss later on, never a wrong answer."""
        for path in sorted(Path(self.folder.name).rglob("*.kv"))[first : first + 1]:
            content = bytearray(path.read_bytes())
            content[len(content) * 2 // 3] ^= 0x40
            path.write_bytes(content)

    @invariant()
    def disk_is_bounded(self):
        if hasattr(self, "world"):
            used = sum(path.stat().st_size for path in Path(self.folder.name).rglob("*.kv"))
            assert used <= self.disk.bytes_held <= self.disk.limit_bytes
            if self.writer is None or not self.writer.tasks:
                assert len(self.disk) >= 0  # takes note of what was written, or could not be
                assert used == self.disk.bytes_held

    def teardown(self):
        super().teardown()
        if hasattr(self, "disk"):
            self.end_writing()
            self.disk.close()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
