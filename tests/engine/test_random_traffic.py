"""Random traffic: whatever arrives, is cancelled, is preempted or fails, each result is that of the request alone."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.cache import invariants
from kvledger.engine.request import FinishReason, Request, Sampling
from kvledger.model.batch import Run
from kvledger.text.prompt import Prompt
from tests.engine.scripted_model import EOS, Bench, Result, alone

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and the step before which its caller goes away (None: stays)."""

    request: Request
    step: int
    gone: int | None


samplings = st.one_of(
    st.just(Sampling(temperature=0.0)),
    st.builds(
        Sampling,
        temperature=st.sampled_from([0.7, 1.0]),
        top_p=st.sampled_from([0.8, 1.0]),
        top_k=st.sampled_from([0, 5]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
        seed=st.integers(0, 3),
        logprobs=st.sampled_from([None, 2]),
    ),
)

prompts = st.builds(  # few distinct beginnings, so that prefixes are shared at every length
    lambda stem, length, rest: (stem * 9)[:length] + rest,
    st.sampled_from([(1, 2, 3, 4, 5), (1, 2, 3, 9), (0,)]),
    st.integers(1, 24),
    st.lists(st.integers(0, EOS), max_size=6).map(tuple),
)


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    found = []
    for number in range(draw(st.integers(2, 7))):
        request = Request(
            f"r{number}",
            Prompt(draw(prompts)),
            sampling=draw(samplings),
            max_tokens=draw(st.sampled_from([25, 40, None, 9, 2, 1])),
            stop=draw(st.sampled_from([(), (), ("abe",), ("猫", "cab")])),
            ignore_eos=draw(st.sampled_from([True, True, True, False])),
            tenant=draw(st.sampled_from(["", "", "", "other"])),
            cache=draw(st.sampled_from([True, True, True, False])),
        )
        step = draw(st.sampled_from([0, 0, 0, 1, 4, 12]))
        found.append(Arrival(request, step, draw(st.sampled_from([None] * 6 + [0, 5, 20]))))
    return found


@given(
    traffic=arrivals(),
    num_blocks=st.integers(8, 16),
    max_running=st.integers(1, 5),
    spare_tokens=st.integers(0, 24),
    context_length=st.sampled_from([60, 400]),
    enabled=st.sampled_from([True, True, True, False]),
    faults=st.sampled_from([(), (), (), (), (3,), (2, 7)]),
)
@settings(max_examples=100, deadline=None)
def test_every_result_is_that_of_the_request_alone(
    traffic: list[Arrival],
    num_blocks: int,
    max_running: int,
    spare_tokens: int,
    context_length: int,
    enabled: bool,
    faults: tuple[int, ...],
) -> None:
    bench = Bench(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        context_length=context_length,
        enabled=enabled,
        max_running=max_running,
        step_tokens=2 * max_running + spare_tokens,
    )
    step, victims = 0, set[str]()

    def fault(runs: list[Run]) -> None:
        if step in faults:
            victims.update(sequence.request.id for sequence in bench.engine._scheduler.running)
            raise RuntimeError("injected")

    bench.model.before_forward = fault
    for step in range(3000):
        for arrival in traffic:
            if arrival.step == step:
                bench.submit(arrival.request)
            if arrival.gone == step:
                bench.engine.cancel(arrival.request.id)
        bench.step()
        invariants.check(bench.cache)
        if step > 20 and all(receiver.finished for receiver in bench.receivers.values()):
            break
    else:
        raise AssertionError("the engine does not come to an end")

    for arrival in traffic:
        request, receiver = arrival.request, bench.receivers[arrival.request.id]
        result, usage = receiver.result, receiver.finished.usage
        expected = alone(request, capacity=num_blocks * BLOCK_SIZE, context_length=context_length)
        if result.reason is FinishReason.CANCELLED:
            assert arrival.gone is not None
        elif result.reason is FinishReason.ERROR:
            assert request.id in victims
        else:
            assert result == expected
        assert expected.tokens[: len(result.tokens)] == result.tokens
        assert is_beginning(result, expected)
        assert usage.output_tokens == len(result.tokens)
        assert 0 <= usage.reused_tokens <= usage.prompt_tokens - 1
    status = bench.engine.status()
    assert (status.running, status.waiting) == (0, 0)
    assert status.free_blocks + status.idle_blocks == num_blocks
    assert status.computed_tokens == bench.model.num_computed
    assert sum(status.finished.values()) == len(traffic)


def is_beginning(result: Result, expected: Result) -> bool:
    """Whether a text is that of the full result, or an early end of it (which may cut a character or a stop string)."""
    complete = result.reason not in (FinishReason.CANCELLED, FinishReason.ERROR)
    return complete or expected.text.startswith(result.text.rstrip("\N{REPLACEMENT CHARACTER}")[: len(expected.text)])
