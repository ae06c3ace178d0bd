"""Scheduling seen from outside: who gets tokens in which step, and what preemption, cancelling and faults leave."""

from __future__ import annotations

import numpy as np
import pytest

from kvledger.engine.request import Finished, FinishReason, Request, Sampling
from kvledger.errors import InvalidRequestError, PromptTooLongError
from kvledger.model.batch import Run
from kvledger.text.prompt import Prompt
from tests.engine.scripted_model import EOS, VOCAB_SIZE, Bench, Receiver, alone

GREEDY = Sampling(temperature=0.0)


def tokens(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, EOS, length))


def ask(name: str, prompt: tuple[int, ...], max_tokens: int | None = 8, **fields) -> Request:
    fields = {"sampling": GREEDY, "ignore_eos": True} | fields
    return Request(name, Prompt(prompt), max_tokens=max_tokens, **fields)


def steps_of(bench: Bench) -> list[dict[int, int]]:
    """Filled as the bench steps: for each step, start of each run -> number of tokens."""
    steps: list[dict[int, int]] = []

    def look(runs: list[Run]) -> None:
        steps.append({run.start: run.tokens.size for run in runs})

    bench.model.before_forward = look
    return steps


def assert_empty(bench: Bench) -> None:
    """Nothing held, nothing lost."""
    status = bench.engine.status()
    assert (status.running, status.waiting) == (0, 0)
    assert status.free_blocks + status.idle_blocks == status.total_blocks


def test_one_request_equals_the_naive_loop() -> None:
    request = ask("r", tokens(21), 30)
    bench = Bench()
    (receiver,) = bench.run(request)
    assert receiver.result == alone(request)
    assert_empty(bench)


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    bench = Bench(step_tokens=8, max_running=4)
    steps = steps_of(bench)
    (receiver,) = bench.run(ask("r", tokens(20), 3))
    assert steps == [{0: 8}, {8: 8}, {16: 4}, {20: 1}, {21: 1}]
    assert receiver.result == alone(ask("r", tokens(20), 3))


def test_decoding_goes_on_while_another_prefills() -> None:
    bench = Bench(step_tokens=8, max_running=4)
    first = bench.submit(ask("first", tokens(4, 1), 40))
    bench.step()
    bench.submit(ask("long", tokens(70, 2), 1))
    for _ in range(8):
        before = len(first.tokens)
        bench.step()
        assert len(first.tokens) == before + 1


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    bench = Bench(num_blocks=200, step_tokens=32, max_running=4)
    long = bench.submit(ask("long", tokens(400, 1)))
    bench.step()
    short = bench.submit(ask("short", tokens(12, 2)))
    bench.step()
    assert len(short.tokens) == 1
    assert not long.tokens


def test_a_long_prompt_is_not_overtaken_for_ever() -> None:
    """Short prompts that fill the step keep coming; half of it stays with the oldest."""
    bench = Bench(num_blocks=400, step_tokens=16, max_running=4)
    long = bench.submit(ask("long", tokens(160, 1), 1))
    for number in range(25):
        bench.submit(ask(f"short-{number}", tokens(14, 100 + number), 1))
        bench.step()
        if long.finished:
            break
    assert number <= 160 // 8
    assert long.result == alone(ask("long", tokens(160, 1), 1))


def test_first_come_first_served_when_room_is_short() -> None:
    """A small request behind a large one that does not fit yet is not let through before it."""
    bench = Bench(num_blocks=16, step_tokens=64, max_running=4)
    bench.submit(ask("running", tokens(40, 1), 12))
    bench.step()
    large = bench.submit(ask("large", tokens(40, 2), 1))
    small = bench.submit(ask("small", tokens(4, 3), 1))
    while not large.finished:
        assert not small.tokens
        bench.step()
    bench.finish()


def test_the_youngest_gives_way_and_its_result_does_not_show_it() -> None:
    requests = [ask(f"r{n}", tokens(12, n), 30, sampling=Sampling(seed=n, logprobs=2)) for n in range(3)]
    bench = Bench(num_blocks=18, step_tokens=64, max_running=3)
    receivers = bench.run(*requests)
    assert bench.engine.status().preemptions > 0
    assert [receiver.result for receiver in receivers] == [alone(request) for request in requests]
    first_done = min(range(3), key=lambda n: receivers[n].finished.usage.decode)
    assert first_done == 0
    assert_empty(bench)


def test_a_block_that_would_be_copied_from_is_given_up_when_there_is_no_other_room() -> None:
    bench = Bench(num_blocks=9, step_tokens=64, max_running=4)
    requests = [ask("short", (1, 2, 3, 4, 0), 1), ask("fills-the-pool", (1, 2, 3, 4, 5, *tokens(31)), 1)]
    for request in requests:
        (receiver,) = bench.run(request)
        assert receiver.result == alone(request)
    assert_empty(bench)


def test_a_sequence_that_outgrows_the_pool_ends_with_capacity_and_the_others_go_on() -> None:
    bench = Bench(num_blocks=8, block_size=4, step_tokens=64, max_running=4)
    greedy_one, other = ask("grows", tokens(20, 1), None), ask("other", tokens(6, 2), 5)
    grows, fine = bench.run(greedy_one, other)
    assert grows.result == alone(greedy_one, capacity=32)
    assert grows.result.reason is FinishReason.CAPACITY
    assert "32" in grows.finished.message
    assert fine.result == alone(other)
    assert_empty(bench)


def test_a_prompt_that_can_never_fit_is_refused_with_numbers() -> None:
    bench = Bench(num_blocks=8, block_size=4, context_length=64)
    with pytest.raises(PromptTooLongError, match=r"33 tokens.*32") as caught:
        bench.submit(ask("pool", tokens(33)))
    assert (caught.value.needed, caught.value.available) == (33, 32)
    with pytest.raises(PromptTooLongError, match=r"65 tokens.*context holds 64") as caught:
        bench.submit(ask("context", tokens(64)))
    assert (caught.value.needed, caught.value.available) == (65, 64)
    bench.run(ask("fits", tokens(32), 1))


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        Bench().submit(ask("r", (1, token)))


def test_requests_that_make_no_sense_are_refused_by_name() -> None:
    for fields, param in (({"max_tokens": 0}, "max_tokens"), ({"stop": ("",)}, "stop"), ({"prompt": ()}, "messages")):
        with pytest.raises(InvalidRequestError) as caught:
            ask(**({"name": "r", "prompt": (1,)} | fields))
        assert caught.value.param == param


def test_two_requests_with_one_id_are_refused() -> None:
    bench = Bench()
    bench.submit(ask("same", tokens(3)))
    with pytest.raises(InvalidRequestError, match="same"):
        bench.submit(ask("same", tokens(3)))


def test_finish_reasons_are_true() -> None:
    bench = Bench(context_length=40)
    ended = ask("eos", tokens(5), None, ignore_eos=False, sampling=Sampling(seed=1, logit_bias=((EOS, 3.0),)))
    by_count = ask("count", tokens(5), 7)
    by_context = ask("context", tokens(35), None)
    by_string = ask("string", tokens(9), None, stop=("a",))
    requests = [ended, by_count, by_context, by_string]
    receivers = bench.run(*requests)
    reasons = [receiver.result.reason for receiver in receivers]
    assert reasons == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.LENGTH, FinishReason.STOP]
    assert [receiver.result for receiver in receivers] == [alone(request, context_length=40) for request in requests]
    assert receivers[0].tokens[-1] == EOS
    assert len(receivers[1].tokens) == 7
    assert len(receivers[2].tokens) == 5
    assert "a" not in receivers[3].result.text


@pytest.mark.parametrize("steps", range(8))
def test_cancelling_at_any_point_frees_everything(steps: int) -> None:
    bench = Bench(num_blocks=16, step_tokens=8, max_running=2)
    gone = bench.submit(ask("gone", tokens(20, 1), 30))
    stays = bench.submit(ask("stays", tokens(20, 2), 6))
    queued = bench.submit(ask("queued", tokens(20, 3), 6))
    for _ in range(steps):
        bench.step()
    bench.engine.cancel("gone")
    bench.engine.cancel("gone")
    bench.engine.cancel("queued")
    bench.engine.cancel("never-was")
    bench.step()
    assert gone.result.reason is FinishReason.CANCELLED
    bench.finish()
    assert queued.result.reason is FinishReason.CANCELLED
    assert stays.result == alone(ask("stays", tokens(20, 2), 6))
    assert gone.finished.usage.output_tokens == len(gone.tokens)
    assert_empty(bench)


def test_a_model_fault_ends_the_requests_of_that_step_only() -> None:
    bench = Bench(num_blocks=30, step_tokens=64, max_running=2)
    victims = [bench.submit(ask(f"victim-{n}", tokens(10, n), 20)) for n in range(2)]
    waiting = bench.submit(ask("waiting", tokens(10, 5), 5))
    bench.step()

    def fault(runs: list[Run]) -> None:
        raise RuntimeError("numbers went bad")

    bench.model.before_forward = fault
    bench.step()
    bench.model.before_forward = lambda runs: None
    for victim in victims:
        assert victim.result.reason is FinishReason.ERROR
        assert "numbers went bad" in victim.finished.message
        assert victim.finished.usage.output_tokens == len(victim.tokens) == 1
    bench.finish()
    assert waiting.result == alone(ask("waiting", tokens(10, 5), 5))
    again = bench.run(ask("again", tokens(10, 0), 20))[0]
    assert again.result == alone(ask("again", tokens(10, 0), 20))
    assert_empty(bench)


def test_a_fault_in_sampling_ends_that_request_only() -> None:
    bench = Bench()
    forward = bench.model.forward

    def not_a_number(runs: list[Run], pool: object) -> np.ndarray:
        rows = forward(runs, pool)
        rows[0] = np.nan
        return rows

    bad, good = bench.submit(ask("bad", tokens(4, 1))), bench.submit(ask("good", tokens(6, 2)))
    bench.model.forward = not_a_number
    bench.step()
    bench.model.forward = forward
    bench.finish()
    assert bad.result.reason is FinishReason.ERROR
    assert "not finite" in bad.finished.message
    assert good.result == alone(ask("good", tokens(6, 2)))
    assert_empty(bench)


def test_a_receiver_that_raises_is_a_caller_who_went_away() -> None:
    bench = Bench()
    calls = []

    def broken(events: list) -> None:
        calls.append(events)
        raise OSError("connection reset")

    bench.engine.submit(ask("broken", tokens(4, 1)), broken)
    good = bench.submit(ask("good", tokens(6, 2)))
    bench.finish()
    assert good.result == alone(ask("good", tokens(6, 2)))
    assert len(calls) == 2
    assert isinstance(calls[1][-1], Finished)
    assert bench.engine.status().finished[FinishReason.CANCELLED] == 1
    assert_empty(bench)


def test_times_are_those_of_the_stages() -> None:
    """One second per step: queued behind another, then two chunks, then four more tokens."""
    bench = Bench(step_tokens=8, max_running=1)
    bench.submit(ask("before", tokens(3, 1), 3))
    receiver: Receiver = bench.submit(ask("timed", tokens(16, 2), 5))
    bench.finish()
    usage = receiver.finished.usage
    assert (usage.queued, usage.prefill, usage.decode) == (3.0, 1.0, 4.0)
    assert (usage.prompt_tokens, usage.reused_tokens, usage.output_tokens) == (16, 0, 5)


def test_remembered_answers() -> None:
    class Notebook:
        def __init__(self) -> None:
            self.pages: list[tuple] = []

        def remember(self, tenant: str, prompt_tokens: tuple[int, ...], text: str, output_tokens: list[int]) -> None:
            self.pages.append((tenant, tuple(prompt_tokens), text, tuple(output_tokens)))

    notebook = Notebook()
    bench = Bench(answers=notebook)
    ended = ask(
        "eos", tokens(5), None, ignore_eos=False, tenant="t", sampling=Sampling(seed=1, logit_bias=((EOS, 3.0),))
    )
    by_count = ask("count", tokens(6), 7)
    cut = ask("cut", tokens(9), None, stop=("a",))
    private = ask("private", tokens(6, 9), 3, cache=False)
    first, second, *_ = bench.run(ended, by_count, cut, private)
    assert sorted(notebook.pages) == sorted(
        [
            ("t", ended.prompt.tokens, first.result.text, first.tokens[:-1]),
            ("", by_count.prompt.tokens, second.result.text, second.tokens),
        ]
    )
