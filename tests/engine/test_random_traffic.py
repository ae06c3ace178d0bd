"""Random traffic: whatever arrives, is cancelled, is preempted or fails, each result is that of the request alone."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.cache import invariants
from kvledger.engine.request import FinishReason, Request, Sampling
from kvledger.model.batch import Run
from kvledger.text.prompt import Prompt
from tests.cache.world import Later, folder_in_memory
from tests.engine.scripted_model import EOS, Bench, Result, alone

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and the step before which its caller goes away (None: stays)."""

    request: Request
    step: int
    gone: int | None

    def again(self, later: int) -> Arrival:
        request = replace(self.request, id=f"{self.request.id}-again")
        return Arrival(request, self.step + later, None if self.gone is None else self.gone + later)


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
    tenant_blocks=st.sampled_from([None, None, 8]),
    reads=st.sampled_from([None, 0, 1, 3]),
    damage=st.sampled_from([None, 9]),
)
@settings(max_examples=150, deadline=None)
def test_every_result_is_that_of_the_request_alone(
    traffic: list[Arrival],
    num_blocks: int,
    max_running: int,
    spare_tokens: int,
    context_length: int,
    enabled: bool,
    faults: tuple[int, ...],
    tenant_blocks: int | None,
    reads: int | None,
    damage: int | None,
) -> None:
    """With `reads`, there is a disk tier: so many groups are read per step, and more if nobody can compute. Then
    everybody comes a second time."""
    if reads is not None:
        traffic = traffic + [arrival.again(60) for arrival in traffic]
    last = max(arrival.step for arrival in traffic)
    stack = ExitStack()
    folder = None if reads is None else Path(stack.enter_context(folder_in_memory()))
    readers = Later()
    bench = Bench(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        context_length=context_length,
        enabled=enabled,
        max_running=max_running,
        step_tokens=2 * max_running + spare_tokens,
        tenant_blocks=tenant_blocks,
        folder=folder,
        readers=readers,
        disk_bytes=8000,
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
        goes_on = bench.step()
        invariants.check(bench.cache, [sequence.lease for sequence in bench.engine._scheduler.running])
        readers.work((reads or 0) if goes_on else 100)
        if step == damage and folder is not None:
            for path in folder.rglob("*.kv"):
                path.write_bytes(path.read_bytes()[:-1] + b"!")
        if step > last and all(receiver.finished for receiver in bench.receivers.values()):
            break
    else:
        raise AssertionError("the engine does not come to an end")

    for arrival in traffic:
        request, receiver = arrival.request, bench.receivers[arrival.request.id]
        result, usage = receiver.result, receiver.finished.usage
        expected = alone(
            request, capacity=min(num_blocks, tenant_blocks or num_blocks) * BLOCK_SIZE, context_length=context_length
        )
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
    bench.cache.close()
    stack.close()


def is_beginning(result: Result, expected: Result) -> bool:
    """Whether a text is that of the full result, or an early end of it (which may cut a character or a stop string)."""
    complete = result.reason not in (FinishReason.CANCELLED, FinishReason.ERROR)
    return complete or expected.text.startswith(result.text.rstrip("\N{REPLACEMENT CHARACTER}")[: len(expected.text)])
