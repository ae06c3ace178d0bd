"""The disk tier under an engine: what is answered survives, loads hold nobody up, and no ending leaves a trace."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kvledger.cache import MissReason, invariants
from kvledger.cache.outline import outline
from kvledger.engine.request import FinishReason, Request, Sampling
from kvledger.errors import ShuttingDownError
from kvledger.text.prompt import Prompt
from tests.cache.world import Later
from tests.engine.scripted_model import EOS, Bench, alone
from tests.engine.test_engine_thread import wait_until

GREEDY = Sampling(temperature=0.0)


def tokens(length: int, seed: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, EOS, length))


def ask(name: str, prompt: tuple[int, ...], max_tokens: int = 6, tenant: str = "") -> Request:
    return Request(name, Prompt(prompt), sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True, tenant=tenant)


class DiskBench(Bench):
    """A bench on a folder that survives it."""

    def __init__(self, folder: Path, **options) -> None:
        super().__init__(folder=folder, **{"step_tokens": 32, "max_running": 4, **options})

    def settle(self) -> None:
        """Step until there is nothing more to do, as the engine's thread does."""
        while self.step():
            pass

    def kill(self) -> None:
        """Nothing of the process remains but what is on disk: only the lock must be given up by hand."""
        self.cache.lower.tier.close()

    def check(self) -> None:
        leases = [sequence.lease for sequence in self.engine._scheduler.running]
        invariants.check(self.cache, leases)


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, tuple[int, ...]]:
    """A folder that an engine has left behind, and a prompt of 90 tokens that it has answered."""
    bench = DiskBench(tmp_path)
    bench.run(ask("r", tokens(90, 1), 1))
    bench.settle()
    bench.kill()
    return tmp_path, tokens(90, 1)


@pytest.mark.parametrize("length", [2, 5, 16, 64, 90])
def test_p18_after_a_kill_the_same_prompt_hits_to_the_same_length(tmp_path: Path, length: int) -> None:
    bench = DiskBench(tmp_path)
    (first,) = bench.run(ask("first", tokens(length, 1), 9))
    bench.settle()
    (warm,) = bench.run(ask("warm", tokens(length, 1), 9))
    bench.settle()
    bench.kill()
    bench = DiskBench(tmp_path)
    (again,) = bench.run(ask("again", tokens(length, 1), 9))
    assert again.finished.usage.reused_tokens == warm.finished.usage.reused_tokens == length - 1
    assert bench.model.num_computed == 9  # the prompt's last token, and eight of the answer
    assert again.result == first.result


def test_the_next_turn_after_a_kill_reuses_the_answer(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path)
    (first,) = bench.run(ask("turn-1", tokens(10, 1), 9))
    bench.settle()
    bench.kill()
    bench = DiskBench(tmp_path)
    longer = (*tokens(10, 1), *first.tokens, 4, 5, 6)
    (second,) = bench.run(ask("turn-2", longer, 5))
    assert second.finished.usage.reused_tokens == 10 + 9 - 1
    assert second.result == alone(ask("turn-2", longer, 5))


def test_a_long_prompt_goes_down_while_it_is_computed_and_in_whole_groups(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path, num_blocks=128, step_tokens=64)
    bench.submit(ask("long", tokens(400, 1), 40))
    groups = []
    for _ in range(6):
        bench.step()
        groups.append(len(list(tmp_path.rglob("*.kv"))))
    assert groups == [1, 2, 3, 4, 5, 6]
    assert len(bench.cache.lower.tier) == 96
    bench.finish()
    bench.settle()
    assert bench.cache.lower.num_waiting == 0
    assert len(bench.cache.lower.tier) == 110


def test_others_decode_while_a_prompt_is_loaded(kept: tuple[Path, tuple[int, ...]]) -> None:
    folder, prompt = kept
    readers = Later()
    bench = DiskBench(folder, readers=readers)
    other = bench.submit(ask("other", tokens(6, 2), 40))
    bench.step()
    loads = bench.submit(ask("loads", prompt, 3))
    for _ in range(5):
        before = len(other.tokens)
        bench.step()
        bench.check()
        assert len(other.tokens) == before + 1
        assert not loads.events
    readers.work()
    bench.finish()
    assert loads.finished.usage.reused_tokens == 89
    assert loads.finished.usage.prefill == 5.0
    assert loads.result == alone(ask("loads", prompt, 3))
    assert other.result == alone(ask("other", tokens(6, 2), 40))


def test_a_step_with_nothing_but_loads_says_so_and_headway_wakes_the_engine(kept: tuple[Path, tuple[int, ...]]) -> None:
    folder, prompt = kept
    readers = Later()
    bench = DiskBench(folder, readers=readers)
    receiver = bench.submit(ask("loads", prompt, 3))
    assert not bench.step()
    assert not bench.step()
    assert not bench.engine._has_news
    readers.work()
    assert bench.engine._has_news
    bench.finish()
    assert receiver.result == alone(ask("loads", prompt, 3))


@pytest.mark.parametrize("work", range(4))
def test_cancelling_a_load_frees_everything(kept: tuple[Path, tuple[int, ...]], work: int) -> None:
    folder, prompt = kept
    readers = Later()
    bench = DiskBench(folder, readers=readers)
    receiver = bench.submit(ask("gone", prompt, 3))
    bench.step()
    readers.work(work)
    bench.engine.cancel("gone")
    bench.step()
    bench.check()
    assert receiver.result.reason is FinishReason.CANCELLED
    assert bench.cache.pool.free + bench.cache.pool.idle == bench.cache.pool.num_blocks
    assert bench.cache.counters.lookups == 1
    assert receiver.finished.usage.reused_tokens == bench.cache.counters.reused_tokens
    (again,) = [bench.submit(ask("again", prompt, 3))]
    bench.step()
    readers.work()
    bench.finish()
    assert again.result == alone(ask("again", prompt, 3))


def test_two_requests_share_one_load(kept: tuple[Path, tuple[int, ...]]) -> None:
    folder, prompt = kept
    readers = Later()
    bench = DiskBench(folder, readers=readers)
    pair = [bench.submit(ask(name, prompt, 3)) for name in ("one", "two")]
    while not all(receiver.finished for receiver in pair):
        for _ in range(3):
            bench.step()
        readers.work()
    assert bench.cache.lower.loaded_blocks == 23 + 1  # the open block is each one's own
    assert [receiver.finished.usage.reused_tokens for receiver in pair] == [89, 89]
    assert pair[0].result == pair[1].result == alone(ask("one", prompt, 3))


def test_a_load_gives_way_to_an_older_sequence(kept: tuple[Path, tuple[int, ...]]) -> None:
    """Preempted while its blocks are on their way; what had arrived is cached, and evicted when that is needed."""
    folder, prompt = kept
    readers = Later()
    bench = DiskBench(folder, num_blocks=28, readers=readers)
    older = bench.submit(ask("older", tokens(4, 2), 60))
    bench.step()
    loads = bench.submit(ask("loads", prompt, 3))
    while not bench.engine._scheduler.num_preemptions:
        bench.step()
        bench.check()
    readers.work()
    while not all(receiver.finished for receiver in (older, loads)):
        bench.step()
        bench.check()
        readers.work()
    assert older.result == alone(ask("older", tokens(4, 2), 60))
    assert loads.result == alone(ask("loads", prompt, 3))
    assert bench.cache.counters.lookups == 2


def test_any_damage_is_a_miss_and_the_answer_is_right(kept: tuple[Path, tuple[int, ...]], caplog) -> None:
    folder, prompt = kept
    for path in folder.rglob("*.kv"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    bench = DiskBench(folder)
    (receiver,) = bench.run(ask("r", prompt, 3))
    assert receiver.result == alone(ask("r", prompt, 3))
    assert receiver.finished.usage.reused_tokens < 89
    assert receiver.finished.usage.miss.reason is MissReason.COLD_START
    assert "does not match its checksum" in caplog.text


def test_p07_another_tenant_loads_nothing(kept: tuple[Path, tuple[int, ...]]) -> None:
    folder, prompt = kept
    bench = DiskBench(folder)
    (receiver,) = bench.run(ask("theirs", prompt, 1, tenant="other"))
    assert receiver.finished.usage.reused_tokens == 0
    assert receiver.finished.usage.miss.reason is MissReason.COLD_START
    assert bench.cache.lower.loaded_blocks == 0


def test_p08_a_reset_covers_the_disk(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path)
    bench.run(ask("r", tokens(40, 1), 1))
    bench.settle()
    bench.engine.with_cache(lambda cache: cache.clear())
    bench.kill()
    (again,) = DiskBench(tmp_path).run(ask("r", tokens(40, 1), 1))
    assert again.finished.usage.reused_tokens == 0


def test_closing_writes_what_is_not_written_yet(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(2) as readers:
        bench = DiskBench(tmp_path, num_blocks=200, writer=writer, readers=readers)
        bench.engine.start()
        list(bench.engine.generate(ask("r", tokens(500, 1), 1)))
        bench.engine.close(drain=0.0)
    (again,) = DiskBench(tmp_path, num_blocks=200).run(ask("again", tokens(500, 1), 1))
    assert again.finished.usage.reused_tokens == 499


def test_on_threads_what_is_answered_is_soon_on_disk_and_loads_from_there(tmp_path: Path) -> None:
    prompt = tokens(300, 1)
    for turn in range(3):
        with ThreadPoolExecutor(1) as writer, ThreadPoolExecutor(2) as readers:
            bench = DiskBench(tmp_path, num_blocks=100, writer=writer, readers=readers)
            bench.engine.start()
            events = list(bench.engine.generate(ask("r", prompt, 4)))
            assert events[-1].usage.reused_tokens == (299 if turn else 0)
            is_written = lambda cache: len(cache.lower.tier) == 76  # noqa: E731
            wait_until(lambda bench=bench, done=is_written: bench.engine.with_cache(done), "the writer")
            bench.cache.close = bench.kill  # nobody hands anything down
            bench.engine.close(drain=0.0)


def test_the_cache_can_be_looked_at_between_two_steps(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path)
    bench.engine.start()
    list(bench.engine.generate(ask("r", tokens(20, 1), 1)))
    (stretch,) = bench.engine.with_cache(lambda cache: list(outline(cache, bench.clock.now())))
    assert stretch.tokens == tokens(20, 1)
    with pytest.raises(ZeroDivisionError):
        bench.engine.with_cache(lambda cache: 1 // 0)
    bench.engine.close(drain=0.0)
    with pytest.raises(ShuttingDownError):
        bench.engine.with_cache(lambda cache: None)


def test_how_fast_prompts_are_computed_is_measured(tmp_path: Path) -> None:
    bench = DiskBench(tmp_path, num_blocks=128, step_tokens=64)
    bench.model.before_forward = lambda runs: bench.clock.advance(0.5)
    bench.run(ask("short", tokens(20, 1), 4))
    assert bench.cache.lower.rates.compute_tokens is None
    bench.run(ask("long", tokens(300, 2), 4))
    assert bench.cache.lower.rates.compute_tokens == pytest.approx(128.0)
