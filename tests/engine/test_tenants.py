"""Tenants side by side: none waits for what only another one lacks, and none is overtaken for ever."""

from __future__ import annotations

import numpy as np
import pytest

from kvledger.engine.request import FinishReason, Request, Sampling
from kvledger.errors import OverloadedError, PromptTooLongError
from kvledger.text.prompt import Prompt
from tests.engine.scripted_model import EOS, Bench, Receiver, alone

GREEDY = Sampling(temperature=0.0)


def ask(tenant: str, number: int, length: int, max_tokens: int = 1) -> Request:
    prompt = tuple(int(token) for token in np.random.default_rng([ord(tenant), number]).integers(0, EOS, length))
    return Request(
        f"{tenant}{number}", Prompt(prompt), sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True, tenant=tenant
    )


def order_of_admission(bench: Bench) -> list[str]:
    """The ids that have started to run, in order; filled as the bench steps."""
    order: list[str] = []
    admit = bench.engine._scheduler._admit

    def note(sequence, lease) -> None:
        order.append(sequence.request.id)
        admit(sequence, lease)

    bench.engine._scheduler._admit = note
    return order


def test_a_full_quota_concerns_its_tenant_only() -> None:
    bench = Bench(num_blocks=64, tenant_blocks=10, step_tokens=64, max_running=4)
    requests = [ask("a", 1, 30, 8), ask("a", 2, 30, 2), ask("a", 3, 4, 2), ask("b", 1, 30, 2)]
    receivers = {request.id: bench.submit(request) for request in requests}
    bench.step()
    running = {sequence.request.id for sequence in bench.engine._scheduler.running}
    assert running == {"a1", "b1"}  # a3 would fit, and waits for its turn behind a2
    bench.finish()
    assert [receivers[request.id].result for request in requests] == [alone(request) for request in requests]


def test_a_full_pool_concerns_everybody() -> None:
    """Nobody small slips in before the first who does not fit, whoever sent it."""
    bench = Bench(num_blocks=16, step_tokens=64, max_running=4)
    order = order_of_admission(bench)
    for request in (ask("a", 1, 40, 12), ask("a", 2, 40), ask("b", 1, 40), ask("b", 2, 4)):
        bench.submit(request)
    bench.step()
    assert order == ["a1"]
    bench.finish()
    assert order == ["a1", "a2", "b1", "b2"]


def test_who_outgrows_its_quota_makes_its_own_give_way() -> None:
    bench = Bench(num_blocks=64, tenant_blocks=10, step_tokens=64, max_running=4)
    requests = [ask("a", 1, 12, 24), ask("a", 2, 12, 24), ask("b", 1, 12, 24), ask("b", 2, 4, 4)]
    gave_way = []
    preempt = bench.engine._scheduler._preempt
    bench.engine._scheduler._preempt = lambda sequence: (gave_way.append(sequence.request.id), preempt(sequence))
    receivers = bench.run(*requests)
    assert set(gave_way) == {"a2"}
    assert [receiver.result for receiver in receivers] == [alone(request) for request in requests]


def test_a_crowd_of_one_tenant_does_not_keep_another_waiting() -> None:
    bench = Bench(num_blocks=64, step_tokens=64, max_running=2)
    order = order_of_admission(bench)
    for number in range(8):
        bench.submit(ask("a", number, 6, 4))
    bench.step()
    for number in range(3):
        bench.submit(ask("b", number, 6, 4))
    bench.finish()
    assert order == ["a0", "a1", "a2", "b0", "a3", "b1", "a4", "b2", "a5", "a6", "a7"]


def test_a_large_request_is_not_overtaken_for_ever_by_the_other_tenant() -> None:
    bench = Bench(num_blocks=16, step_tokens=64, max_running=4)
    large = bench.submit(ask("a", 0, 60))
    for number in range(60):
        bench.submit(ask("b", number, 10, 3))
        bench.step()
        if large.finished:
            break
    assert number < 8
    bench.finish()


def test_a_request_as_large_as_the_quota_runs_beside_others() -> None:
    """The spare block for newcomers must not push it over its quota for as long as anybody else runs."""
    bench = Bench(num_blocks=64, tenant_blocks=10, step_tokens=64, max_running=4)
    other = bench.submit(ask("b", 1, 4, 36))
    bench.step()
    large = bench.submit(ask("a", 1, 40))
    bench.step()
    assert large.finished
    assert not other.finished
    bench.finish()


def test_a_sequence_that_outgrows_its_quota_ends_with_capacity() -> None:
    bench = Bench(num_blocks=64, tenant_blocks=5, step_tokens=64, max_running=4)
    (grows,) = bench.run(ask("a", 1, 16, 30))
    assert grows.result == alone(ask("a", 1, 16, 30), capacity=20)
    assert grows.result.reason is FinishReason.CAPACITY
    assert "20" in grows.finished.message


def test_a_prompt_over_the_quota_is_refused_with_its_number() -> None:
    bench = Bench(num_blocks=64, tenant_blocks=5)
    assert bench.engine.capacity == 20
    with pytest.raises(PromptTooLongError, match=r"21 tokens.*20"):
        bench.submit(ask("a", 1, 21))


def test_each_tenant_has_a_queue_of_its_own() -> None:
    bench = Bench(num_blocks=64, step_tokens=64, max_running=1, max_queue=2)
    for number in range(3):
        bench.submit(ask("a", number, 4))
    with pytest.raises(OverloadedError):
        bench.engine.submit(ask("a", 3, 4), Receiver())
    bench.submit(ask("b", 0, 4))
    bench.finish()
    bench.run(ask("a", 4, 4))
