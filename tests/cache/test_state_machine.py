"""Acquire, commit, decode, preempt, abort, pressure, expiry, clear, persist, restart: every order keeps every law."""

from __future__ import annotations

import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvledger.cache import Pending
from kvledger.cache.disk import DiskTier
from kvledger.cache.events import EventLog
from kvledger.cache.eviction import LFU, LRU, Belady, CostAware
from kvledger.cache.retention import BOOKKEEPING_BYTES
from kvledger.cache.tiers import LowerTier, Rates
from kvledger.text.prompt import Mark
from tests.cache.world import Sequence_, World, space

SPACES = [space("a"), space("b"), space("a", adapter="x")]
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=18)
BLOCK_COST = 64 + BOOKKEEPING_BYTES


class CacheMachine(RuleBasedStateMachine):
    """Small tokens, small blocks and a small pool, so that everything meets everything."""

    has_disk = False

    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 4),
        policy=st.sampled_from([LRU(), LFU(), CostAware(8.0), Belady({})]),
        ttl=st.sampled_from([5.0, None]),
        tenant_blocks=st.sampled_from([None, 3, 6]),
        pin_share=st.sampled_from([0.0, 0.3, 1.0]),
    )
    def begin(self, num_blocks, block_size, policy, ttl, tenant_blocks, pin_share):
        self.folder = TemporaryDirectory()
        options = {"policy": policy, "ttl": ttl, "pin_share": pin_share, "events": EventLog()}
        if tenant_blocks is not None:
            options["tenant_bytes"] = tenant_blocks * BLOCK_COST
        self.world = World(num_blocks, block_size, options)
        self.open_disk()

    def open_disk(self):
        if not self.has_disk:
            return
        self.disk = DiskTier(Path(self.folder.name), "model", limit_bytes=30_000)

        def write_block(block, payload):
            self.world.kv[block] = pickle.loads(payload)

        self.world.options["lower"] = LowerTier(
            self.disk,
            read_block=lambda block: pickle.dumps(self.world.kv[block]),
            write_block=write_block,
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
        assert self.world.cache.counters.lookups == before + isinstance(result, Sequence_)
        if isinstance(result, Pending):
            assert any(sequence.written < len(sequence.tokens) for sequence in self.world.running)
        if result is None:
            assert self.world.running

    @precondition(lambda self: self.world.running)
    @rule(pick=st.integers(0), count=st.integers(1, 9))
    def write(self, pick, count):
        self.world.write(self.pick(pick), count)

    @precondition(lambda self: self.world.running)
    @rule(pick=st.integers(0), token=st.integers(0, 1))
    def decode(self, pick, token):
        sequence = self.pick(pick)
        if sequence.written == len(sequence.tokens):
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
        if lease is not None:
            self.world.cache.release(lease)

    @rule(seconds=st.sampled_from([0.25, 1.0, 4.0, 30.0]))
    def wait(self, seconds):
        self.world.clock.advance(seconds)

    @rule()
    def clear(self):
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

    @rule(limit=st.integers(1, 20))
    def persist(self, limit):
        self.world.cache.persist(limit)

    @rule()
    def restart(self):
        self.disk.close()
        self.world.running.clear()
        self.world.resident.clear()
        self.world.last_event = 0
        self.world.options["events"] = EventLog()
        self.open_disk()

    @rule()
    def corrupt(self):
        """Flip a byte of some file: a miss later on, never a wrong answer."""
        for path in sorted(Path(self.folder.name).rglob("*.kv"))[:1]:
            content = bytearray(path.read_bytes())
            content[len(content) * 2 // 3] ^= 0x40
            path.write_bytes(content)

    @invariant()
    def disk_is_bounded(self):
        if hasattr(self, "world"):
            used = sum(path.stat().st_size for path in Path(self.folder.name).rglob("*.kv"))
            assert used == self.disk.bytes_held <= self.disk.limit_bytes

    def teardown(self):
        super().teardown()
        if hasattr(self, "disk"):
            self.disk.close()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
