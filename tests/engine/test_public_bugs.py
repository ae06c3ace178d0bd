"""Bugs that other engines had in public, as assertions about this one. The names are those of our case list."""

from __future__ import annotations

import numpy as np
import pytest

from kvledger.cache import MissReason, invariants
from kvledger.engine.request import FinishReason, Request, Sampling
from kvledger.text.prompt import Mark, Prompt, Segment
from tests.engine.scripted_model import EOS, Bench, alone

GREEDY = Sampling(temperature=0.0)


def tokens(length: int, seed: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, EOS, length))


def ask(name: str, prompt: tuple[int, ...], max_tokens: int = 6) -> Request:
    return Request(name, Prompt(prompt), sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True)


@pytest.mark.parametrize("length", [5, 12, 21, 64])
def test_p10_the_same_new_prefix_twice_in_a_batch_is_read_only_once_written(length: int) -> None:
    """The scripted model raises when it reads a position that nobody wrote."""
    bench = Bench(step_tokens=16, max_running=4)
    first, second = bench.run(ask("first", tokens(length, 1)), ask("second", tokens(length, 1)))
    assert first.result == second.result == alone(ask("first", tokens(length, 1)))


def test_p10_the_second_of_a_batch_does_not_compute_what_the_first_is_computing() -> None:
    bench = Bench(step_tokens=16, max_running=4)
    steps = []
    bench.model.before_forward = lambda runs: steps.append(sum(run.tokens.size for run in runs))
    _, second = bench.run(ask("first", tokens(64, 1), 1), ask("second", tokens(64, 1), 1))
    assert second.finished.usage.reused_tokens == 63
    assert sum(steps) == 65


def test_p12_no_live_table_names_a_free_block() -> None:
    """Two requests compute the same prefix at once, because their tails differ within the first block."""
    bench = Bench(step_tokens=64, max_running=4)
    prefix = tokens(8, 3)
    requests = [ask("one", prefix[:3], 9), ask("two", prefix[:3], 12), ask("three", prefix[:2], 9)]
    for request in requests:
        bench.submit(request)
    while not all(receiver.finished for receiver in bench.receivers.values()):
        bench.step()
        invariants.check(bench.cache)
        free = set(bench.cache.pool.free_blocks)
        for sequence in bench.engine._scheduler.running:
            assert not free & set(sequence.lease.table)
    assert [bench.receivers[request.id].result for request in requests] == [alone(request) for request in requests]


@pytest.mark.parametrize(("length", "block_size"), [(12, 4), (64, 16), (13, 4), (2, 4)])
def test_p13_a_fully_cached_prompt_computes_exactly_one_token(length: int, block_size: int) -> None:
    bench = Bench(num_blocks=32, block_size=block_size)
    bench.run(ask("first", tokens(length, 1), 1))
    before = bench.model.num_computed
    (again,) = bench.run(ask("again", tokens(length, 1), 1))
    assert again.finished.usage.reused_tokens == length - 1
    assert bench.model.num_computed - before == 1
    assert again.result == alone(ask("again", tokens(length, 1), 1))


def preempted(num_requests: int = 4) -> Bench:
    """Unique prompts in a pool too small for all of them to grow."""
    bench = Bench(num_blocks=20, step_tokens=64, max_running=4)
    bench.run(*(ask(f"r{number}", (number, *tokens(11, number)), 30) for number in range(num_requests)))
    assert bench.engine.status().preemptions > 0
    return bench


def test_p20_recomputing_after_preemption_is_not_a_hit() -> None:
    bench = preempted()
    assert bench.engine.status().reused_tokens == 0
    assert all(receiver.finished.usage.reused_tokens == 0 for receiver in bench.receivers.values())
    assert all(receiver.finished.usage.miss.reason is MissReason.COLD_START for receiver in bench.receivers.values())


def test_p21_one_lookup_per_admitted_request_however_long_it_waits() -> None:
    bench = preempted()
    assert bench.cache.counters.lookups == 4
    bench = Bench(num_blocks=8, step_tokens=64, max_running=4)
    bench.run(*(ask(f"r{number}", (number, *tokens(20, number)), 5) for number in range(4)))
    assert bench.cache.counters.lookups == 4


def test_p22_reused_tokens_are_those_of_the_first_admission() -> None:
    bench = Bench(num_blocks=20, step_tokens=64, max_running=4)
    shared = tokens(9, 1)
    bench.run(ask("earlier", shared, 1))
    receivers = bench.run(*(ask(f"r{n}", (*shared, n), 30) for n in range(4)))
    assert bench.engine.status().preemptions > 0
    for receiver in receivers:
        assert receiver.finished.usage.reused_tokens <= 9
        assert receiver.finished.usage.prompt_tokens == 10
    assert receivers[0].finished.usage.reused_tokens == 9


@pytest.mark.parametrize("max_tokens", [1, 7])
def test_p26_length_is_length_and_counts_are_those_of_the_ids(max_tokens: int) -> None:
    (receiver,) = Bench().run(ask("r", tokens(9, 2), max_tokens))
    assert receiver.result.reason is FinishReason.LENGTH
    assert receiver.finished.usage.output_tokens == len(receiver.tokens) == max_tokens


def test_p26_a_model_that_ends_its_turn_stops_and_its_last_token_counts() -> None:
    sampling = Sampling(temperature=0.0, logit_bias=((EOS, 100.0),))
    (receiver,) = Bench().run(Request("r", Prompt((1, 2, 3)), sampling=sampling))
    assert receiver.result.reason is FinishReason.STOP
    assert receiver.tokens == (EOS,)
    assert receiver.finished.usage.output_tokens == 1
    assert receiver.result.text == ""


def test_the_next_turn_reuses_the_generated_tokens() -> None:
    bench = Bench()
    (first,) = bench.run(ask("turn-1", tokens(10, 1), 9))
    (second,) = bench.run(ask("turn-2", (*tokens(10, 1), *first.tokens, 4, 5, 6), 5))
    # KV of the last sampled token was never computed
    assert second.finished.usage.reused_tokens == 10 + 9 - 1
    assert second.result == alone(ask("turn-2", (*tokens(10, 1), *first.tokens, 4, 5, 6), 5))


def test_p06_another_tenant_reuses_nothing_and_is_told_what_a_first_prompt_is_told() -> None:
    def theirs(name: str) -> Request:
        return Request(name, Prompt(tokens(20, 1)), sampling=GREEDY, max_tokens=1, tenant="other")

    bench = Bench()
    bench.run(ask("mine", tokens(20, 1), 1))
    before = bench.model.num_computed
    (receiver,) = bench.run(theirs("theirs"))
    (never_seen,) = Bench().run(theirs("theirs"))
    assert receiver.finished.usage == never_seen.finished.usage
    assert bench.model.num_computed - before == 20
    (again,) = bench.run(theirs("again"))
    assert again.finished.usage.reused_tokens == 19


@pytest.mark.parametrize("length", [61, 63, 64])
def test_p11_a_prompt_that_fills_the_pool_is_not_evicted_by_itself(length: int) -> None:
    bench = Bench(num_blocks=16)
    for name in ("first", "again", "and-again"):
        (receiver,) = bench.run(ask(name, tokens(length, 1), 1))
        assert receiver.result == alone(ask(name, tokens(length, 1), 1))
        assert receiver.finished.usage.reused_tokens == (0 if name == "first" else length - 1)


def test_p14_everything_is_counted_once_whatever_is_shared() -> None:
    bench = Bench(num_blocks=40, step_tokens=32, max_running=4)
    for number in range(6):
        bench.submit(ask(f"r{number}", (*tokens(16, 1), number), 12))
    while not all(receiver.finished for receiver in bench.receivers.values()):
        bench.step()
        leases = [sequence.lease for sequence in bench.engine._scheduler.running]
        invariants.check(bench.cache, leases)
    assert bench.cache.pool.free + bench.cache.pool.idle == 40


def test_p31_a_prompt_below_the_minimum_is_told_the_minimum() -> None:
    (receiver,) = Bench().run(ask("r", (1,), 1))
    miss = receiver.finished.usage.miss
    assert (miss.reason, miss.minimum) == (MissReason.BELOW_MINIMUM, 2)


def test_a_miss_names_the_place_in_the_request_body() -> None:
    bench = Bench()
    bench.run(ask("earlier", tokens(20, 1), 1))
    changed = (*tokens(20, 1)[:14], 3, *tokens(5, 9))
    segments = (Segment(0, 10, "messages[0].content"), Segment(10, 20, "messages[1].content[2].text"))
    (receiver,) = bench.run(Request("later", Prompt(changed, segments), sampling=GREEDY, max_tokens=1))
    miss = receiver.finished.usage.miss
    assert (miss.reason, miss.position) == (MissReason.PREFIX_CHANGED, receiver.finished.usage.reused_tokens)
    assert (miss.token, miss.earlier_token) == (changed[miss.position], tokens(20, 1)[miss.position])
    assert miss.path == "messages[1].content[2].text"


def test_a_mark_keeps_its_prefix_for_its_own_time() -> None:
    bench = Bench()
    marked = Prompt(tokens(20, 1), marks=(Mark(16, ttl=3600.0),))
    bench.run(Request("marked", marked, sampling=GREEDY, max_tokens=1), ask("unmarked", tokens(20, 2), 1))
    bench.clock.advance(400)
    later = bench.run(ask("one", tokens(20, 1), 1), ask("two", tokens(20, 2), 1))
    assert [receiver.finished.usage.reused_tokens for receiver in later] == [16, 0]


def test_a_request_that_shuns_the_cache_neither_reads_nor_writes_it() -> None:
    bench = Bench()
    shy = Request("shy", Prompt(tokens(20, 1)), sampling=GREEDY, max_tokens=1, cache=False)
    bench.run(shy)
    (after,) = bench.run(ask("after", tokens(20, 1), 1))
    assert after.finished.usage.reused_tokens == 0
    shy_again = Request("shy-again", Prompt(tokens(20, 1)), sampling=GREEDY, max_tokens=1, cache=False)
    (receiver,) = bench.run(shy_again)
    assert receiver.finished.usage.reused_tokens == 0
    assert receiver.finished.usage.miss.reason is MissReason.DISABLED
