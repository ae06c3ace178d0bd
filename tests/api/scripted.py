"""An engine, a tokenizer and a template without weights: the answer echoes the last message, one byte per token.

A last message that begins with `!` asks for something else: `!endless`, `!capacity`, `!error N` (a fault after N
tokens).
"""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kvledger.engine.request import (
    Event,
    Finished,
    FinishReason,
    Generated,
    Request,
    TokenLogprob,
    Usage,
)
from kvledger.errors import OverloadedError, PromptTooLongError, ShuttingDownError
from kvledger.text.chat import Chat
from kvledger.text.prompt import Prompt

CONTEXT = 4096
Sink = Callable[[list[Event]], None]


class ByteTokenizer:
    vocab_size = 256

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])


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

    def cancel(self, request_id: str) -> None:
        with self._lock:
            if self._running.pop(request_id, None) is not None:
                self.cancelled.append(request_id)

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
        usage = Usage(prompt, min(16, prompt - 1), running.sent, 0.0, 0.0, 0.0)
        rest = running.decoder.decode(b"", final=False) if reason is FinishReason.ERROR else ""
        return Finished(reason, usage, rest, message)
