"""Blocks on their way up from the lower tier: what a lease may do meanwhile, and every way in which a load can end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvledger.cache import Lease, MissReason, Pending
from kvledger.cache.pool import State
from kvledger.cache.tiers import GROUP_BLOCKS, Rates
from kvledger.clock import ManualClock
from kvledger.text.prompt import Segment
from tests.cache.test_disk import DiskWorld
from tests.cache.world import Later, Sequence_, World, space

A = space("a")
PROMPT = list(range(30))


class LoadingWorld(DiskWorld):
    """A restarted world: everything is on disk, and readers read when told to."""

    def __init__(self, folder: Path, num_blocks: int = 96):
        super().__init__(folder, num_blocks)
        self.readers = Later()

    def keep(self, *prompts: list[int]) -> None:
        for prompt in prompts:
            self.serve(A, prompt)
        self.cache.persist(1000)
        self.restart()
        self.cache.lower._readers = self.readers

    def begin(self, prompt: list[int], **options) -> Sequence_:
        sequence = self.admit(A, prompt, **options)
        assert isinstance(sequence, Sequence_)
        assert sequence.is_loading
        self.check()
        return sequence


@pytest.fixture
def world(tmp_path):
    world = LoadingWorld(tmp_path)
    world.keep(PROMPT)
    return world


def test_a_load_takes_nobody_elses_time(world):
    sequence = world.begin(PROMPT)
    assert not world.receive(sequence)
    world.serve(A, [7] * 12)
    world.readers.work()
    assert world.receive(sequence)
    assert world.receive(sequence)
    assert (sequence.lease.reused, sequence.lease.miss) == (29, None)
    world.check()
    world.write(sequence, 1)
    world.finish(sequence)
    world.check()


def test_it_is_counted_when_it_is_known(world):
    counters = world.cache.counters
    sequence = world.begin(PROMPT)
    assert counters.lookups == 0
    world.readers.work()
    world.receive(sequence)
    assert (counters.lookups, counters.prompt_tokens, counters.reused_tokens) == (1, 30, 29)


def test_blocks_in_memory_are_shared_and_the_rest_is_loaded(world):
    first = world.begin(PROMPT[:17])
    world.readers.work()
    world.receive(first)
    second = world.begin([*PROMPT, 99])
    assert second.lease.table[:4] == first.lease.table[:4]
    assert second.lease.reused == second.written == 16
    world.readers.work()
    assert world.receive(second)
    assert second.lease.reused == 30
    world.check()


def test_the_second_of_two_equal_prompts_waits_for_the_load_of_the_first(world):
    first = world.begin(PROMPT)
    assert world.admit(A, PROMPT) == Pending(0)
    world.readers.work()
    world.receive(first)
    second = world.begin(PROMPT)  # of the open block, which the first goes on writing, it loads a copy of its own
    assert second.lease.table[:7] == first.lease.table[:7]
    assert second.lease.reused == 28
    world.readers.work()
    world.receive(second)
    assert second.lease.reused == 29
    assert world.cache.lower.loaded_blocks == 8 + 1


def test_what_is_released_while_it_loads_keeps_what_has_arrived(tmp_path):
    world = LoadingWorld(tmp_path)
    prompt = list(range(4 * 40))
    world.keep(prompt)
    sequence = world.begin(prompt)
    world.readers.work(2)
    world.finish(sequence)
    world.check()
    assert world.cache.pool.owned == world.cache.pool.ready == 0
    assert world.possible(A, prompt) == 2 * GROUP_BLOCKS * 4
    assert world.cache.counters.lookups == 1
    world.readers.work()
    world.check()
    assert world.cache.pool.idle == 2 * GROUP_BLOCKS


def test_a_load_that_fails_in_the_middle_leaves_the_rest_to_compute(tmp_path, caplog):
    world = LoadingWorld(tmp_path)
    prompt = list(range(4 * 40))
    world.keep(prompt)
    second_group = sorted(world.disk.folder.glob("*.kv"))[1]
    second_group.write_bytes(second_group.read_bytes()[:-1] + b"!")
    segments = [Segment(0, 100, "messages[0].content"), Segment(100, 160, "messages[1].content")]
    sequence = world.begin(prompt, segments=segments)
    world.readers.work()
    assert world.receive(sequence)
    assert sequence.lease.reused == 4 * (2 * GROUP_BLOCKS - 1)
    assert sequence.lease.miss.reason is MissReason.COLD_START
    assert sequence.lease.miss.path == "messages[1].content"
    assert "does not match its checksum" in caplog.text
    world.check()
    assert world.write(sequence, 999)
    world.finish(sequence)
    world.check()


def test_a_load_that_brings_nothing_leaves_everything_to_compute(world):
    sequence = world.begin(PROMPT)
    for path in world.disk.folder.glob("*.kv"):
        path.unlink()
    world.readers.work()
    assert world.receive(sequence)
    assert sequence.lease.reused == 0
    world.check()
    assert world.serve(A, PROMPT[:4]).reused == 0


def test_any_fault_of_a_reader_is_a_failed_load(world, caplog):
    def broken(block, payload):
        raise RuntimeError("out of order")

    world.cache.lower._write_block = broken
    sequence = world.begin(PROMPT)
    world.readers.work()
    assert world.receive(sequence)
    assert sequence.lease.reused == 0
    assert "out of order" in caplog.text


def test_what_is_cleared_while_it_loads_is_not_found_afterwards(world):
    sequence = world.begin(PROMPT)
    world.readers.work(1)
    world.cache.clear()
    world.check()
    assert world.receive(sequence)
    assert sequence.lease.reused == 0
    assert world.write(sequence, 999)
    world.finish(sequence)
    world.check()
    assert world.possible(A, PROMPT) == 0
    assert world.serve(A, PROMPT).reused == 0


def test_a_group_that_makes_room_for_others_while_it_is_read_is_no_damage(world, caplog):
    sequence = world.begin(PROMPT)
    world.disk.clear()
    world.readers.work()
    assert world.receive(sequence)
    assert sequence.lease.reused == 0
    assert "left out of the cache" not in caplog.text


def test_headway_is_told(world):
    told = []
    world.cache.lower.notify = lambda: told.append(all(work.done() for work in sequence.lease.loading.work))
    sequence = world.begin(PROMPT)
    assert told == []
    world.readers.work()
    assert told == [True]


def test_loading_blocks_belong_to_their_lease(world):
    sequence = world.begin(PROMPT)
    for block in sequence.lease.loading.blocks:
        assert world.cache.pool.states[block] == State.OWNED
    with pytest.raises(AssertionError, match="received"):
        world.cache.commit(sequence.lease, PROMPT, 30)


def test_rates_are_measured_and_one_that_is_unknown_is_found_out():
    rates = Rates()
    assert rates.prefers_loading(10**12, 1)
    rates.add_compute(100, 1.0)
    assert rates.prefers_loading(10**12, 1)
    rates.add_load(1000, 1.0)
    assert rates.prefers_loading(999, 100)
    assert not rates.prefers_loading(1001, 100)
    for _ in range(30):
        rates.add_load(4000, 1.0)
        rates.add_compute(50, 1.0)
    assert rates.load_bytes == pytest.approx(4000, rel=0.01)
    assert rates.compute_tokens == pytest.approx(50, rel=0.01)
    rates.add_load(1, 0.0)  # too fast to be measured
    assert rates.load_bytes == pytest.approx(4000, rel=0.01)


def test_loads_are_timed_by_the_clock(world):
    world.cache.lower.rates = Rates()
    world.cache.lower._write_block = lambda block, payload: world.clock.advance(0.5)
    sequence = world.admit(A, PROMPT)
    world.readers.work()
    assert world.cache.receive(sequence.lease)
    size = sum(entry.size for group in world.disk._groups.values() for entry in group.entries)
    assert world.cache.lower.rates.load_bytes == pytest.approx(size / 4.0)


def test_a_slow_disk_is_tried_again_in_the_end(world):
    """What made it slow may have passed; a verdict that is never tried again would last for ever."""
    world.cache.lower.rates = Rates(load_bytes=1.0, compute_tokens=1.0)
    tries = 0
    while not (sequence := world.admit(A, PROMPT)).is_loading:
        world.finish(sequence)
        tries += 1
        assert tries < 500
    assert tries > 10


def test_what_waits_is_handed_down_at_the_end(tmp_path):
    world = LoadingWorld(tmp_path)
    world.serve(A, PROMPT)
    assert world.cache.lower.num_waiting == 8
    world.cache.close()
    world.kv = [[None] * 4 for _ in range(96)]
    world.start()
    assert world.serve(A, PROMPT).reused == 29


def test_a_busy_tier_is_left_alone_and_nothing_is_lost(tmp_path, monkeypatch):
    writer = Later()
    world = LoadingWorld(tmp_path)
    world.disk._executor = writer
    monkeypatch.setattr("kvledger.cache.disk._BUSY_BYTES", 1)
    world.serve(A, list(range(4 * 40)))
    assert world.cache.persist(100) == 40 - GROUP_BLOCKS
    assert world.cache.persist(100) == 40 - GROUP_BLOCKS
    for left in (40 - 2 * GROUP_BLOCKS, 0):
        writer.work()
        assert world.cache.persist(100) == left
    writer.work()
    assert len(world.disk) == 40


def test_a_world_without_a_lower_tier_has_nothing_to_receive_or_keep():
    world = World()
    lease = world.cache.acquire(A, PROMPT)
    assert isinstance(lease, Lease)
    assert world.cache.receive(lease)
    assert world.cache.persist(10) == 0
    world.cache.close()


def test_a_manual_clock_measures_nothing_by_itself(tmp_path):
    world = LoadingWorld(tmp_path)
    world.keep(PROMPT)
    world.cache.lower.rates = Rates()
    sequence = world.begin(PROMPT)
    world.readers.work()
    world.receive(sequence)
    assert isinstance(world.clock, ManualClock)
    assert world.cache.lower.rates.load_bytes is None
