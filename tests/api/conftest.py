from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

import httpx
import openai
import pytest

from kvledger.api.app import create_app
from kvledger.api.auth import Keys
from kvledger.api.books import Books
from kvledger.api.server import Server, bind, listen
from kvledger.api.service import Service
from kvledger.clock import ManualClock
from kvledger.ledger.budget import Budgets
from kvledger.ledger.keys import KeyRing
from tests.api.scripted import ByteTokenizer, LineTemplate, ScriptedEngine


@dataclass
class Running:
    """A real HTTP server on a free port, in front of a scripted engine."""

    service: Service
    server: Server
    port: int

    @property
    def engine(self) -> ScriptedEngine:
        return self.service.engine

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, **options) -> httpx.Client:
        # Plain HTTP, so no certificates: loading them is the slowest part of making a client.
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=False, **options)

    def sdk(self, *, key: str = "unused", timeout: float = 30) -> openai.OpenAI:
        """The official client, without retries: a test wants to see the first answer."""
        url = f"{self.url}/v1"
        return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=timeout, http_client=self.client())

    def chat(self, content: object = "hello", **fields) -> httpx.Response:
        body = {"model": "scripted", "messages": [{"role": "user", "content": content}], **fields}
        with self.client() as client:
            return client.post("/v1/chat/completions", json=body)


@pytest.fixture
def start() -> Iterator[object]:
    """Starts servers; each ends with the test."""
    started: list[tuple[Running, threading.Thread]] = []

    def start(
        *,
        keys: tuple[str, ...] = (),
        operators: tuple[str, ...] = (),
        engine: ScriptedEngine | None = None,
        drain: float = 1.0,
        ring: KeyRing | None = None,
        persona: str | None = None,
        writer: object = None,
        spent: Decimal = Decimal(0),
    ) -> Running:
        clock = ManualClock(1_794_484_800.0 if persona or writer or ring else 1_700_000_000.0)
        books = Books(clock, "scripted", budgets=Budgets(clock, lambda name, since: spent) if ring else None)
        if writer is not None:
            books.writer = writer
        service = Service(
            engine=engine or ScriptedEngine(),
            tokenizer=ByteTokenizer(),
            template=LineTemplate(),
            answers=None,
            model_names=("scripted", "alias"),
            keys=Keys(keys, operators, ring),
            clock=clock,
            workers=ThreadPoolExecutor(2),
            started=1_700_000_000,
            persona=persona,
            books=books,
        )
        listener = bind("127.0.0.1", 0)
        listen(listener)

        def close_engine(seconds: float) -> None:
            service.closing = True
            service.engine.close(drain=seconds)

        server = Server(create_app(service), close_engine=close_engine, drain=drain)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        running = Running(service, server, listener.getsockname()[1])
        started.append((running, thread))
        return running

    yield start
    for running, thread in started:
        running.server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def served(start) -> Running:
    return start()


def eventually(condition, seconds: float = 5.0) -> bool:
    """Wait for something that another thread does; says whether it happened."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if condition():
            return True
        time.sleep(0.005)
    return bool(condition())
