"""The engine thread: blocking callers, back-pressure, shutdown, sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from kvledger.engine.request import Event, Finished, FinishReason, Request, Sampling
from kvledger.errors import OverloadedError, ShuttingDownError
from kvledger.model.batch import Run
from kvledger.text.prompt import Prompt
from tests.engine.scripted_model import Bench, Receiver, alone

GREEDY = Sampling(temperature=0.0)
PATIENCE = 30.0


def ask(name: str, max_tokens: int | None = 8, prompt: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Request:
    return Request(name, Prompt(prompt), sampling=GREEDY, max_tokens=max_tokens, ignore_eos=True)


class Gate:
    """Stops the model before a forward pass until told to go on."""

    def __init__(self, bench: Bench) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        bench.model.before_forward = self

    def __call__(self, runs: list[Run]) -> None:
        self.entered.set()
        assert self.go_on.wait(PATIENCE)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(max_running=2, step_tokens=32, max_queue=2)
    yield bench
    bench.engine.close(drain=0.0)


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.002)


def result_of(events: list[Event]):
    receiver = Receiver()
    receiver(events)
    return receiver.result


def test_generate_yields_the_events_of_a_request(bench: Bench) -> None:
    bench.engine.start()
    assert result_of(list(bench.engine.generate(ask("r")))) == alone(ask("r"))


def test_many_callers_at_once_get_what_each_would_get_alone(bench: Bench) -> None:
    bench.engine.start()
    results = {}

    def call(number: int) -> None:
        request = ask(f"r{number}", 20, (number % 3, 5, 6, 7, number % 5))
        while request.id not in results:
            try:
                results[request.id] = (request, result_of(list(bench.engine.generate(request))))
            except OverloadedError:
                time.sleep(0.01)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(12)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(PATIENCE)
    assert len(results) == 12
    for request, result in results.values():
        assert result == alone(request)


def test_generate_needs_a_started_engine(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="not started"):
        bench.engine.generate(ask("r"))


def test_a_second_start_is_refused(bench: Bench) -> None:
    bench.engine.start()
    with pytest.raises(RuntimeError, match="already"):
        bench.engine.start()


def test_closing_the_iterator_cancels(bench: Bench) -> None:
    bench.engine.start()
    events = bench.engine.generate(ask("r", None))
    next(events)
    events.close()
    wait_until(lambda: bench.engine.status().finished.get(FinishReason.CANCELLED) == 1, "the cancellation")
    wait_until(lambda: bench.engine.status().running == 0, "the end")
    status = bench.engine.status()
    assert status.free_blocks + status.idle_blocks == status.total_blocks


def test_a_full_queue_refuses_and_says_when_to_come_back(bench: Bench) -> None:
    gate = Gate(bench)
    bench.engine.start()
    receivers = {name: Receiver() for name in "abcde"}
    bench.engine.submit(ask("a"), receivers["a"])
    assert gate.entered.wait(PATIENCE)
    for name in "bcd":
        bench.engine.submit(ask(name), receivers[name])
    with pytest.raises(OverloadedError, match="2 requests are waiting") as caught:
        bench.engine.submit(ask("e"), receivers["e"])
    assert 1 <= caught.value.retry_after <= 60
    gate.go_on.set()
    wait_until(lambda: all(receivers[name].finished for name in "abcd"), "the others")
    bench.engine.submit(ask("e"), receivers["e"])
    wait_until(lambda: receivers["e"].finished, "the one that came back")


def test_close_lets_running_requests_finish(bench: Bench) -> None:
    bench.engine.start()
    receiver = Receiver()
    bench.engine.submit(ask("r", 40), receiver)
    bench.engine.close(drain=PATIENCE)
    assert receiver.result == alone(ask("r", 40))


def test_close_ends_the_rest_with_an_error_that_says_so(bench: Bench) -> None:
    gate = Gate(bench)
    bench.engine.start()
    receivers = [Receiver() for _ in range(3)]
    bench.engine.submit(ask("r0", 3000), receivers[0])
    assert gate.entered.wait(PATIENCE)
    bench.engine.submit(ask("r1"), receivers[1])
    bench.engine.submit(ask("r2"), receivers[2])
    closer = threading.Thread(target=bench.engine.close, kwargs={"drain": 0.0})
    closer.start()
    wait_until(lambda: bench.engine._stopping, "the closing")
    with pytest.raises(ShuttingDownError):
        bench.engine.submit(ask("late"), Receiver())
    gate.go_on.set()
    closer.join(PATIENCE)
    for receiver in receivers:
        assert receiver.result.reason is FinishReason.ERROR
        assert "shutting down" in receiver.finished.message
    status = bench.engine.status()
    assert status.free_blocks + status.idle_blocks == status.total_blocks


def test_close_without_start_ends_what_was_queued(bench: Bench) -> None:
    receiver = bench.submit(ask("r"))
    bench.engine.close(drain=0.0)
    bench.engine.close(drain=0.0)
    assert receiver.result.reason is FinishReason.ERROR


def test_a_fault_outside_the_model_fails_what_is_in_flight_and_the_engine_goes_on(bench: Bench) -> None:
    schedule = bench.engine._scheduler.schedule

    def fault() -> None:
        bench.engine._scheduler.schedule = schedule
        raise RuntimeError("a bug")

    bench.engine._scheduler.schedule = fault
    receivers = [bench.submit(ask("r0")), bench.submit(ask("r1"))]
    bench.engine.start()
    wait_until(lambda: all(receiver.finished for receiver in receivers), "the failures")
    assert {receiver.result.reason for receiver in receivers} == {FinishReason.ERROR}
    assert result_of(list(bench.engine.generate(ask("after")))) == alone(ask("after"))


def test_an_idle_engine_sleeps(bench: Bench) -> None:
    """The thread waits without a timeout: it wakes for work and for nothing else."""
    wakes = []
    step = bench.engine.step
    bench.engine.step = lambda: wakes.append(1) or step()
    bench.engine.start()
    list(bench.engine.generate(ask("r", 4)))
    wait_until(lambda: bench.engine.status().running == 0, "the end")
    count = len(wakes)
    time.sleep(0.05)
    assert len(wakes) == count <= 5  # a token each, and a last look


def test_events_come_on_one_thread_and_the_last_is_finished(bench: Bench) -> None:
    bench.engine.start()
    threads, done = set(), threading.Event()

    def sink(events: list[Event]) -> None:
        threads.add(threading.current_thread().name)
        if isinstance(events[-1], Finished):
            done.set()

    bench.engine.submit(ask("r"), sink)
    assert done.wait(PATIENCE)
    assert threads == {"kvledger-engine"}
