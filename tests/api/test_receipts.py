"""Every request that the engine took leaves one receipt, whatever ended it, and nobody sees an end without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass, field

import httpx
import pytest

from kvledger.errors import LedgerError
from kvledger.ledger.database import Database
from kvledger.ledger.receipt import Receipt
from kvledger.ledger.store import Filter, Ledger
from tests.api.conftest import eventually
from tests.api.scripted import ScriptedEngine

CLAUDE = "claude-sonnet-5.5"


@dataclass
class Sink:
    """Keeps receipts; `ready` False leaves them unsafe for ever, `broken` cannot keep them."""

    receipts: list[Receipt] = field(default_factory=list)
    ready: bool = True
    broken: bool = False

    def submit(self, receipt: Receipt) -> Future[None]:
        self.receipts.append(receipt)
        future: Future[None] = Future()
        if self.broken:
            future.set_exception(LedgerError("The ledger cannot be used: the disk is full."))
        elif self.ready:
            future.set_result(None)
        return future


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "fields", "reason"),
    [
        ("hello", {}, "stop"),
        ("hello", {"max_tokens": 2}, "length"),
        ("!capacity", {}, "capacity"),
        ("!error 0", {}, "error"),
        ("!error 3", {}, "error"),
        ("hello", {"n": 3}, "stop"),
    ],
)
def test_one_receipt_for_every_end(start, sink, content, fields, reason, stream):
    served = start(writer=sink)
    served.chat(content, stream=stream, **fields)
    (receipt,) = sink.receipts
    assert receipt.finish_reason == reason
    assert receipt.provider == "kvledger"
    assert receipt.usage.split.read == receipt.reused_tokens
    assert receipt.answered_by == "scripted"
    assert receipt.ttft is None or receipt.ttft >= 0.75


@pytest.mark.parametrize("streaming", [True, False])
def test_a_client_that_leaves_pays_for_what_was_generated(start, sink, streaming):
    served = start(writer=sink, engine=ScriptedEngine(pause=0.005))
    body = {"model": "gpt-5.5", "messages": [{"role": "user", "content": "!endless"}], "stream": streaming}
    with served.client() as client:
        if streaming:
            with client.stream("POST", "/v1/chat/completions", json=body) as response:
                next(response.iter_raw())
        else:
            with pytest.raises(httpx.TimeoutException):
                client.post("/v1/chat/completions", json=body, timeout=0.2)
    assert eventually(lambda: sink.receipts)
    (receipt,) = sink.receipts
    assert (receipt.finish_reason, receipt.provider) == ("cancelled", "openai")
    assert receipt.usage.output > 0
    assert receipt.bill.total > 0


def test_an_error_costs_nothing(start, sink):
    served = start(writer=sink)
    served.chat("!error 3", model="gpt-5.5")
    assert sink.receipts[0].bill.total == 0


def test_what_the_engine_never_took_has_no_receipt(start, sink):
    served = start(writer=sink)
    for fields in ({"max_tokens": "x"}, {"model": "nobody"}, {"content": "x" * 5000}):
        assert served.chat(**fields).status_code in (400, 404)
    assert sink.receipts == []


@pytest.mark.parametrize("stream", [False, True])
def test_no_answer_ends_before_its_receipt_is_safe(start, stream):
    sink = Sink(ready=False)
    served = start(writer=sink)
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    received = []

    def read() -> None:
        with served.client() as client, client.stream("POST", "/v1/chat/completions", json=body, timeout=0.3) as answer:
            received.extend(answer.iter_raw())

    with pytest.raises(httpx.TimeoutException):
        read()
    assert len(sink.receipts) == 1
    assert not any(b"DONE" in piece for piece in received)


def test_a_ledger_that_fails_is_an_error(start):
    served = start(writer=Sink(broken=True))
    assert served.chat("hi").status_code == 500
    assert "disk is full" in served.chat("hi", stream=True).text


def test_a_persona_answers_under_its_own_name(start, sink):
    served = start(writer=sink, persona=f"anthropic:{CLAUDE}")
    body = {"model": "scripted", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    with served.client() as client:
        assert client.post("/v1/messages", json=body).json()["model"] == CLAUDE
        assert client.get("/v1/models").json()["data"][0]["id"] == CLAUDE
    (receipt,) = sink.receipts
    assert (receipt.model, receipt.provider, receipt.answered_by) == (CLAUDE, "anthropic", "scripted")
    assert served.chat("hi").status_code == 404


SERVER = """
import sys
from pathlib import Path
from kvledger.api.server import Server, bind, listen
from kvledger.ledger.database import Database
from kvledger.ledger.store import Ledger
from kvledger.ledger.writer import LedgerWriter
from kvledger.testing.emulator import Emulator
emulator = Emulator.create()
emulator.service.books.writer = LedgerWriter(Ledger(Database(Path(sys.argv[1]))))
listener = bind("127.0.0.1", 0)
listen(listener)
print(listener.getsockname()[1], flush=True)
Server(emulator.app, close_engine=emulator.close, drain=1.0).run([listener])
"""


def test_kill_9_after_an_answer_loses_no_receipt(tmp_path):
    path = tmp_path / "ledger.db"
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}/v1/chat/completions"
        ids = []
        with httpx.Client(trust_env=False, verify=False) as client:
            for number in range(20):
                messages = [{"role": "user", "content": f"Question {number}"}]
                answer = client.post(url, json={"model": "gpt-5.5", "messages": messages, "stream": number % 2 == 1})
                ids.append(answer.headers["x-request-id"])
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.communicate()
    ledger = Ledger(Database(path, create=False))
    assert [row.receipt.id for row in ledger.rows(Filter())] == ids
    assert ledger.verify().faults == ()
