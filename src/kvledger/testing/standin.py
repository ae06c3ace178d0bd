"""What answers in a model's place: at once, without weights, and always the same."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec

from kvledger.api.errors import Refusal
from kvledger.cache import Lease, Miss, Namespace, PromptCache
from kvledger.cache.events import EventLog
from kvledger.clock import Clock
from kvledger.engine.output import OutputText
from kvledger.engine.request import Event, Finished, FinishReason, Generated, Request, TokenLogprob, Usage
from kvledger.engine.status import EngineStatus, Totals
from kvledger.errors import OverloadedError, PromptTooLongError, ShuttingDownError
from kvledger.text.tokenizer import Tokenizer

CONTEXT = 1 << 20
"""Tokens of one sequence; also what the cache of prompts holds."""

_BLOCK = 16

Sink = Callable[[list[Event]], None]
T = TypeVar("T")


class ScriptedCall(msgspec.Struct, forbid_unknown_fields=True):
    """A tool call to answer with."""

    name: str
    arguments: dict[str, object] = {}


class Script(msgspec.Struct, forbid_unknown_fields=True):
    """What to answer one request with: `text`, calls of tools that it offers, or an error of HTTP status `error`, with
    `message` and, where `retry_after` is given, the header of that name (seconds)."""

    text: str = ""
    tool_calls: list[ScriptedCall] = []
    error: int | None = None
    message: str = "This error was asked for by the test."
    retry_after: float | None = None

    def __post_init__(self) -> None:
        if self.error is not None and not 400 <= self.error <= 599:
            raise ValueError(f"{self.error} is no status of an error: give 400 to 599")

    def written(self) -> str:
        """The answer in the notation in which models write calls."""
        calls = [msgspec.json.encode({"name": call.name, "arguments": call.arguments}) for call in self.tool_calls]
        return self.text + "".join(f"<tool_call>{call.decode()}</tool_call>" for call in calls)


class StandIn:
    """An engine for tests. Prompts are kept in a real prompt cache, so what can be reused and why not is real; their
    KV is nothing. Answers are scripts in the order in which they were given, then a sentence that depends on the length
    of the prompt alone. `latency` is real seconds from a request to the beginning of its answer. Safe to use from
    several threads.
    """

    def __init__(self, tokenizer: Tokenizer, clock: Clock, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.namespace = Namespace("stand-in", tokenizer.fingerprint, "", "none", "")
        self._tokenizer = tokenizer
        self._clock = clock
        self._cache = self._new_cache()
        self._totals = Totals()
        self._scripts: deque[Script] = deque()
        self._waiting: dict[str, tuple[Request, Sink, Usage, str]] = {}
        self._lock = threading.RLock()
        self._closing = False

    def play(self, scripts: Sequence[Script]) -> int:
        """Answer the next requests so; returns how many scripts wait."""
        with self._lock:
            self._scripts.extend(scripts)
            return len(self._scripts)

    def forget(self) -> None:
        """Forget scripts and prompts."""
        with self._lock:
            self._scripts.clear()
            self._cache = self._new_cache()

    def submit(self, request: Request, sink: Sink) -> None:
        """See `Engine.submit`. Raises what a script says."""
        prompt = request.prompt
        with self._lock:
            if self._closing:
                raise ShuttingDownError("The emulator is shutting down.")
            if len(prompt.tokens) >= CONTEXT:
                raise PromptTooLongError(len(prompt.tokens) + 1, CONTEXT, "the stand-in's context")
            script = self._scripts.popleft() if self._scripts else None
            if script is not None and script.error is not None:
                raise _refusal(script)
            reused, miss = self._reuse(request)
            usage = Usage(len(prompt.tokens), reused, 0, 0.0, self.latency, 0.0, miss)
            text = script.written() if script else _sentence(prompt.tokens)
            self._waiting[request.id] = request, sink, usage, text
        if self.latency:
            timer = threading.Timer(self.latency, self._answer, (request.id,))
            timer.daemon = True
            timer.start()
        else:
            self._answer(request.id)

    def cancel(self, request_id: str) -> None:
        """See `Engine.cancel`."""
        self._end(request_id, FinishReason.CANCELLED)

    def status(self) -> EngineStatus:
        """See `Engine.status`."""
        pool, totals = self._cache.pool, self._totals
        return EngineStatus(
            running=len(self._waiting),
            waiting=0,
            free_blocks=pool.free,
            idle_blocks=pool.idle,
            total_blocks=pool.num_blocks,
            preemptions=0,
            steps=totals.steps,
            computed_tokens=totals.computed_tokens,
            prompt_tokens=totals.prompt_tokens,
            reused_tokens=totals.reused_tokens,
            output_tokens=totals.output_tokens,
            finished=dict(totals.finished),
        )

    def with_cache(self, visit: Callable[[PromptCache], T]) -> T:
        """See `Engine.with_cache`."""
        with self._lock:
            return visit(self._cache)

    def close(self, *, drain: float) -> None:
        """See `Engine.close`; what waits ends now."""
        with self._lock:
            self._closing = True
            waiting = list(self._waiting)
        for request_id in waiting:
            self._end(request_id, FinishReason.ERROR, "The emulator is shutting down.")

    def _new_cache(self) -> PromptCache:
        return PromptCache(
            CONTEXT // _BLOCK, block_size=_BLOCK, bytes_per_block=1, clock=self._clock, ttl=None, events=EventLog()
        )

    def _reuse(self, request: Request) -> tuple[int, Miss | None]:
        """Put the prompt into the cache; what of it was there already, and why not more."""
        prompt = request.prompt
        lease = self._cache.acquire(
            replace(self.namespace, tenant=request.tenant),
            prompt.tokens,
            segments=prompt.segments,
            use_cache=request.cache,
        )
        if not isinstance(lease, Lease):
            raise OverloadedError("The emulator's cache is full: try again.", retry_after=1.0)
        reused, miss = lease.reused, lease.miss
        self._cache.commit(lease, prompt.tokens, len(prompt.tokens))
        self._cache.release(lease)
        return reused, miss

    def _answer(self, request_id: str) -> None:
        with self._lock:
            found = self._waiting.pop(request_id, None)
            if found is None:
                return
            request, sink, usage, text = found
            events = self._events(request, usage, text)
            sink(events)

    def _events(self, request: Request, usage: Usage, text: str) -> list[Event]:
        shown = OutputText(self._tokenizer, request.stop)
        limit = request.max_tokens or CONTEXT - usage.prompt_tokens
        wants = request.sampling.logprobs
        events: list[Event] = []
        reason = FinishReason.STOP
        for token in self._tokenizer.encode(text):
            if len(events) == limit:
                reason = FinishReason.LENGTH
                break
            chosen = None if wants is None else TokenLogprob(token, -0.5)
            others = tuple(TokenLogprob(token, -0.5) for _ in range(wants or 0))
            reused = None if events else usage.reused_tokens
            events.append(Generated(token, shown.push(token), chosen, others, reused))
            if shown.stopped:
                break
        return [
            *events,
            self._finished(replace(usage, output_tokens=len(events)), reason, shown.finish(), stop=shown.stop),
        ]

    def _end(self, request_id: str, reason: FinishReason, message: str = "") -> None:
        with self._lock:
            found = self._waiting.pop(request_id, None)
            if found is not None:
                _, sink, usage, _ = found
                sink([self._finished(usage, reason, message=message)])

    def _finished(
        self, usage: Usage, reason: FinishReason, text: str = "", *, message: str = "", stop: str | None = None
    ) -> Finished:
        self._totals.add_request(reason, usage, was_admitted=True)
        return Finished(reason, usage, text, message, stop)


def _refusal(script: Script) -> Refusal:
    assert script.error is not None
    headers = {} if script.retry_after is None else {"retry-after": f"{script.retry_after:g}"}
    return Refusal(script.error, script.message, headers=headers)


def _sentence(tokens: Sequence[int]) -> str:
    return f"This is the stand-in's answer to {len(tokens)} tokens."
