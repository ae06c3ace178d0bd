"""An engine, a tokenizer and a template without weights: the answer echoes the last message, one byte per token.

A last message that begins with `!` asks for something else: `!endless`, `!capacity`, `!error N` (a fault after N
tokens).
"""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kvledger.cache import Miss, MissReason, Namespace, PromptCache
from kvledger.cache.events import EventLog
from kvledger.clock import ManualClock
from kvledger.engine.request import (
    Event,
    Finished,
    FinishReason,
    Generated,
    Request,
    TokenLogprob,
    Usage,
)
from kvledger.engine.status import EngineStatus, Totals
from kvledger.errors import OverloadedError, PromptTooLongError, ShuttingDownError
from kvledger.text.chat import Chat
from kvledger.text.prompt import Prompt

CONTEXT = 4096
Sink = Callable[[list[Event]], None]
T = TypeVar("T")


class ByteTokenizer:
    vocab_size = 256

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class LineTemplate:
    """`role: content` on a line each."""

    def __init__(self) -> None:
        self.chats: list[Chat] = []

    def render(self, chat: Chat, *, answers: object = None, tenant: str = "") -> Prompt:
        self.chats.append(chat)
        return Prompt(tuple("\n".join(f"{m.role}: {m.content}" for m in chat.messages).encode()))


@dataclass
class Running:
    request: Request
    sink: Sink
    script: str
    decoder: codecs.IncrementalDecoder
    sent: int = 0
    events: list[Event] = field(default_factory=list)


class ScriptedEngine:
    """One thread, one token per sequence and step. `pause` seconds lie between steps; clear `go` to hold it."""

    def __init__(self, *, max_queue: int = 64, pause: float = 0.0) -> None:
        self.max_queue = max_queue
        self.pause = pause
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.steps = 0
        self.go = threading.Event()
        self.go.set()
        self.closing = False
        self.namespace = Namespace("weights", "tokenizer", "", "layout", "")
        self.cache = PromptCache(
            64, block_size=16, bytes_per_block=1000, clock=ManualClock(1_700_000_000.0), events=EventLog()
        )
        self.totals = Totals()
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_running(self) -> int:
        return len(self._running)

    def submit(self, request: Request, sink: Sink) -> None:
        needed = len(request.prompt.tokens)
        if needed >= CONTEXT:
            raise PromptTooLongError(needed + 1, CONTEXT, "the model's context")
        with self._lock:
            if self.closing:
                raise ShuttingDownError("The server is shutting down.")
            if len(self._running) >= self.max_queue:
                raise OverloadedError("The queue is full: try again later.", retry_after=1.5)
            script = bytes(request.prompt.tokens).decode().rpartition(": ")[2]
            self.requests.append(request)
            self._running[request.id] = Running(request, sink, script, codecs.getincrementaldecoder("utf-8")())

    def remember(self, tenant: str, text: str) -> None:
        """Put a prompt into the cache."""
        tokens = list(text.encode())
        lease = self.cache.acquire(replace(self.namespace, tenant=tenant), tokens)
        self.cache.commit(lease, tokens, len(tokens))
        self.cache.release(lease)

    def with_cache(self, visit: Callable[[PromptCache], T]) -> T:
        return visit(self.cache)

    def status(self) -> EngineStatus:
        totals, pool = self.totals, self.cache.pool
        return EngineStatus(
            running=len(self._running),
            waiting=0,
            free_blocks=pool.free,
            idle_blocks=pool.idle,
            total_blocks=pool.num_blocks,
            preemptions=0,
            steps=self.steps,
            computed_tokens=totals.computed_tokens,
            prompt_tokens=totals.prompt_tokens,
            reused_tokens=totals.reused_tokens,
            output_tokens=totals.output_tokens,
            finished=dict(totals.finished),
        )

    def cancel(self, request_id: str) -> None:
        with self._lock:
            running = self._running.pop(request_id, None)
            if running is not None:
                self.cancelled.append(request_id)
        if running is not None:
            running.sink([self._finished(running, FinishReason.CANCELLED)])

    def close(self, *, drain: float) -> None:
        self.closing = True
        limit = time.monotonic() + drain
        while self._running and time.monotonic() < limit:
            time.sleep(0.005)
        self._end.set()
        self.go.set()
        self._thread.join()
        for running in self._running.values():
            running.sink([self._finished(running, FinishReason.ERROR, "The server is shutting down.")])

    def _run(self) -> None:
        while not self._end.is_set():
            self.go.wait()
            with self._lock:
                running = list(self._running.values())
            for sequence in running:
                events = self._step(sequence)
                if isinstance(events[-1], Finished):
                    with self._lock:
                        self._running.pop(sequence.request.id, None)
                sequence.sink(events)
            self.steps += 1
            time.sleep(self.pause if running else 0.001)

    def _step(self, running: Running) -> list[Event]:
        request, script = running.request, running.script
        if script == "!capacity":
            return [self._finished(running, FinishReason.CAPACITY)]
        if script.startswith("!error") and running.sent == int(script.split()[1]):
            return [self._finished(running, FinishReason.ERROR, "A fault ended this step.")]
        output = b"x" * 1_000_000 if script.startswith("!") else script.encode()
        if running.sent == len(output):
            return [self._finished(running, FinishReason.STOP)]
        token = output[running.sent]
        running.sent += 1
        wants = request.sampling.logprobs
        chosen = None if wants is None else TokenLogprob(token, -0.5)
        others = tuple(TokenLogprob((token + k) % 256, -0.5 - k) for k in range(wants or 0))
        events: list[Event] = [Generated(token, running.decoder.decode(bytes([token])), chosen, others)]
        if running.sent == request.max_tokens:
            events.append(self._finished(running, FinishReason.LENGTH))
        return events

    def _finished(self, running: Running, reason: FinishReason, message: str = "") -> Finished:
        prompt = len(running.request.prompt.tokens)
        reused = min(16, prompt - 1)
        miss = Miss(MissReason.COLD_START, reused, "messages[0].content") if reused < prompt - 1 else None
        usage = Usage(prompt, reused, running.sent, 0.25, 0.5, 2.0, miss)
        self.totals.add_request(reason, usage, was_admitted=True)
        rest = running.decoder.decode(b"", final=False) if reason is FinishReason.ERROR else ""
        return Finished(reason, usage, rest, message)
