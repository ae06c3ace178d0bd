"""The writer's thread: batches, order, failures, and nothing lost once a response may have ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import pytest

from kvledger.errors import LedgerConflictError, LedgerError
from kvledger.ledger.receipt import Receipt
from kvledger.ledger.store import Ledger
from kvledger.ledger.writer import LedgerWriter
from tests.ledger.samples import receipt


class Gate(Ledger):
    """A real ledger that lets a batch through only when told to, and remembers the sizes of its batches."""

    def __init__(self, where: Path) -> None:
        super().__init__(where)
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.batches: list[int] = []

    def append(self, receipts: Sequence[Receipt]) -> None:
        self.batches.append(len(receipts))
        self.entered.set()
        assert self.gate.wait(30)
        super().append(receipts)


@pytest.fixture
def ledger(tmp_path: Path):
    made = Gate(tmp_path / "ledger.db")
    made.gate.set()
    yield made
    made.close()


@pytest.fixture
def writer(ledger: Gate):
    made = LedgerWriter(ledger, capacity=8, batch=5)
    yield made
    ledger.gate.set()
    made.close()


def ids(ledger: Ledger) -> list[str]:
    return [row.receipt.id for row in ledger.rows()]


def test_a_done_future_means_the_receipt_is_committed(ledger, writer, tmp_path):
    writer.submit(receipt("a")).result(30)
    other = Ledger(tmp_path / "ledger.db")
    assert ids(other) == ["a"]
    other.close()


def test_what_waits_is_committed_in_batches_and_in_order(ledger, writer):
    ledger.gate.clear()
    futures = [writer.submit(receipt("r0"))]
    assert ledger.entered.wait(30)  # the first batch is on its way
    futures += [writer.submit(receipt(f"r{i}")) for i in range(1, 8)]
    assert not any(future.done() for future in futures)
    ledger.gate.set()
    writer.flush()
    assert all(future.done() for future in futures)
    assert ids(ledger) == [f"r{i}" for i in range(8)]
    assert ledger.batches == [1, 5, 2]
    assert ledger.verify().faults == ()


def test_a_full_queue_holds_up_the_submitter_and_nobody_else(ledger, writer):
    ledger.gate.clear()
    writer.submit(receipt("first"))
    assert ledger.entered.wait(30)
    for i in range(8):
        writer.submit(receipt(f"r{i}"))
    late = threading.Thread(target=writer.submit, args=(receipt("late"),))
    late.start()
    late.join(0.1)
    assert late.is_alive()

    async def server() -> None:
        waiting = asyncio.create_task(writer.record(receipt("later")))
        await asyncio.sleep(0.05)  # the loop goes on although the queue is full
        assert not waiting.done()
        ledger.gate.set()
        await waiting

    asyncio.run(server())
    late.join(30)
    writer.flush()
    assert sorted(ids(ledger)) == sorted(["first", *(f"r{i}" for i in range(8)), "late", "later"])


def test_a_contradiction_fails_alone(ledger, writer):
    writer.submit(receipt("a")).result(30)
    ledger.gate.clear()
    futures = [writer.submit(receipt("b"))]
    futures += [writer.submit(receipt("a", decode=9.0)), writer.submit(receipt("c"))]
    ledger.gate.set()
    futures[0].result(30)
    with pytest.raises(LedgerConflictError, match="another receipt of request a"):
        futures[1].result(30)
    futures[2].result(30)
    assert ids(ledger) == ["a", "b", "c"]


def test_a_ledger_that_fails_says_so_to_everyone_who_waits_and_can_recover(tmp_path):
    class Broken(Ledger):
        works = False

        def append(self, receipts: Sequence[Receipt]) -> None:
            if not self.works:
                raise LedgerError("The disk is full.")
            super().append(receipts)

    ledger = Broken(tmp_path / "ledger.db")
    writer = LedgerWriter(ledger)
    with pytest.raises(LedgerError, match="disk is full"):
        writer.submit(receipt("a")).result(30)
    with pytest.raises(LedgerError, match="disk is full"):
        asyncio.run(writer.record(receipt("b")))
    ledger.works = True
    writer.submit(receipt("a")).result(30)
    writer.close()
    assert ids(ledger) == ["a"]
    ledger.close()


def test_closing_commits_what_waits_and_refuses_what_comes_later(ledger):
    writer = LedgerWriter(ledger)
    for i in range(20):
        writer.submit(receipt(f"r{i}"))
    writer.close()
    writer.close()
    assert len(ids(ledger)) == 20
    with pytest.raises(LedgerError, match="is closed"):
        writer.submit(receipt("late"))


def test_a_cancelled_request_is_recorded_all_the_same(ledger, writer):
    async def server() -> None:
        ledger.gate.clear()
        waiting = asyncio.create_task(writer.record(receipt("gone")))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        ledger.gate.set()

    asyncio.run(server())
    writer.flush()
    assert ids(ledger) == ["gone"]


KILLED = """
import sys
from kvledger.ledger.store import Ledger
from kvledger.ledger.writer import LedgerWriter
from tests.ledger.samples import receipt

writer = LedgerWriter(Ledger(sys.argv[1]))
number = 0
while True:
    number += 1
    futures = [writer.submit(receipt(f"{number}.{i}")) for i in range(3)]
    futures[0].result()
    print(f"{number}.0", flush=True)  # the response of this request has ended
"""


def test_nothing_is_lost_on_kill_9_once_a_response_ended(tmp_path):
    path = tmp_path / "ledger.db"
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True, cwd=root, env=dict(os.environ)
    )
    assert process.stdout is not None
    ended = [process.stdout.readline().strip() for _ in range(50)]
    process.send_signal(signal.SIGKILL)
    ended += process.stdout.read().split()
    process.wait(30)
    ledger = Ledger(path, create=False)
    assert set(ended) <= set(ids(ledger))
    assert ledger.verify().faults == ()
    ledger.append([receipt("after")])
    assert ledger.verify().faults == ()
    ledger.close()


@pytest.mark.slow
def test_two_thousand_receipts_a_second_on_sqlite(tmp_path):
    """With every commit forced to the disk; the figure is in docs/billing.md."""
    ledger = Ledger(tmp_path / "ledger.db")
    writer = LedgerWriter(ledger)
    made = [receipt(f"r{i}") for i in range(6000)]
    began = perf_counter()
    futures = [writer.submit(one) for one in made]
    for future in futures:
        future.result(60)
    seconds = perf_counter() - began
    writer.close()
    ledger.close()
    assert len(made) / seconds > 2000
