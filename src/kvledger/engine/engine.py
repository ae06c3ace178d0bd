"""The engine: one thread that turns requests into tokens, step by step, for everybody at once."""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvledger.cache import Namespace, PromptCache
from kvledger.cache.tiers import GROUP_BLOCKS
from kvledger.clock import Clock
from kvledger.engine.output import OutputText
from kvledger.engine.request import Event, Finished, FinishReason, Generated, Request
from kvledger.engine.sampler import Sampler
from kvledger.engine.scheduler import Chunk, Scheduler
from kvledger.engine.sequence import Sequence, Sink
from kvledger.engine.status import EngineStatus, Totals
from kvledger.errors import InvalidRequestError, OverloadedError, PromptTooLongError, ShuttingDownError
from kvledger.model.batch import Model, Run
from kvledger.model.kv import KVPool
from kvledger.text.answers import Answers
from kvledger.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

T = TypeVar("T")

PROMPT_STEP = 64
"""Tokens of a step from which on it says how fast prompts are computed: a few tokens cost as much as one."""

WRITE_PAUSE = 0.05
"""Seconds between looks at a lower tier that has too much to write to take more, while there is nothing else to do."""


class Engine:
    """Serves requests from a model, a KV pool and the prompt cache that keeps its books.

    `submit`, `cancel`, `generate` and `status` may be called from any thread. The cache, the pool and the model are
    the engine thread's alone; `with_cache` goes there. Every submitted request gets exactly one `Finished`, whatever
    happens.
    `namespace` is that of all requests, their tenant aside; `context_length` may lower the model's own limit.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        pool: KVPool,
        cache: PromptCache,
        *,
        namespace: Namespace,
        clock: Clock,
        answers: Answers | None = None,
        max_running: int = 16,
        step_tokens: int = 512,
        max_queue: int = 256,
        context_length: int | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._pool = pool
        self._cache = cache
        self._namespace = namespace
        self._clock = clock
        self._answers = answers
        self._max_queue = max_queue
        # Some models round their vocabulary up: ids that the tokenizer does not have are never sampled.
        self._vocab_size = min(model.config.vocab_size, tokenizer.vocab_size)
        self._context_length = min(context_length or model.config.context_length, model.config.context_length)
        self._scheduler = Scheduler(cache, clock, max_running=max_running, step_tokens=step_tokens)
        self._totals = Totals()
        self._blocks_per_step = max(step_tokens // cache.block_size, GROUP_BLOCKS)
        self._has_ended = False  # a request, since the last time that nothing was left to persist
        if cache.lower is not None:
            cache.lower.notify = self._wake

        self._changed = threading.Condition()  # guards all below; notified on every change
        self._live: dict[str, Sequence] = {}
        self._tenants: Counter[str] = Counter()  # live requests of each
        self._arrivals: list[Sequence] = []
        self._cancels: list[str] = []
        self._visits: list[Callable[[], None]] = []
        self._has_news = False
        self._closing = False
        self._stopping = False
        self._thread: threading.Thread | None = None

    @property
    def capacity(self) -> int:
        """The most tokens of one sequence that the KV cache can hold."""
        return self._cache.capacity

    @property
    def namespace(self) -> Namespace:
        """That of all requests, their tenant aside."""
        return self._namespace

    @property
    def context_length(self) -> int:
        """The most tokens of one sequence, prompt and output together."""
        return self._context_length

    def start(self) -> None:
        """Start the engine thread."""
        if self._thread is not None:
            raise RuntimeError("the engine is already started")
        self._thread = threading.Thread(target=self._serve, name="kvledger-engine", daemon=True)
        self._thread.start()

    def close(self, *, drain: float) -> None:
        """Take no new requests, give the others `drain` seconds to finish, end the rest with ERROR, and stop.

        What is cached goes down to the lower tier, if there is one, before this returns.
        """
        with self._changed:
            self._closing = True
            if self._thread is not None:
                self._changed.wait_for(lambda: not self._live, timeout=drain)
            self._stopping = True
            self._changed.notify_all()
        if self._thread is None:
            self._serve()
        else:
            self._thread.join()

    def submit(self, request: Request, sink: Sink) -> None:
        """Queue a request. `sink` gets its events on the engine thread, at most once per step, the last one `Finished`.

        At most `max_running` requests run, and `max_queue` of each tenant wait. A sink must return at once and must not
        raise; one that does is treated as a caller who went away.
        Raises `InvalidRequestError` (`PromptTooLongError` with numbers for a prompt that can never fit),
        `OverloadedError` when the queue is full, `ShuttingDownError` after `close`.
        """
        sequence = self._sequence(request, sink)
        with self._changed:
            if self._closing:
                raise ShuttingDownError("The server is shutting down and takes no new requests.")
            if request.id in self._live:
                raise InvalidRequestError(f"A request with the id {request.id} is already running: use another id.")
            num_waiting = self._tenants[request.tenant] - self._scheduler.max_running
            if num_waiting >= self._max_queue:
                wait = self._totals.seconds_per_request * num_waiting / self._scheduler.max_running
                raise OverloadedError(
                    f"{num_waiting} requests are waiting, as many as the queue holds: try again later.",
                    retry_after=min(max(1.0, wait), 60.0),
                )
            self._live[request.id] = sequence
            self._tenants[request.tenant] += 1
            self._arrivals.append(sequence)
            self._changed.notify_all()

    def cancel(self, request_id: str) -> None:
        """End a request before its next step. One that has ended, or never was, is left alone."""
        with self._changed:
            if request_id in self._live:
                self._cancels.append(request_id)
                self._changed.notify_all()

    def generate(self, request: Request) -> Iterator[Event]:
        """Submit now; the events come from the iterator, and closing it early cancels the request."""
        if self._thread is None:
            raise RuntimeError("the engine is not started")
        events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self.submit(request, events.put)
        return self._events(request.id, events)

    def with_cache(self, visit: Callable[[PromptCache], T]) -> T:
        """What `visit` returns, or raises, when it is called with the prompt cache between two steps.

        It may look at everything, and clear. Raises `ShuttingDownError` after `close`.
        """
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(visit(self._cache))
            except Exception as error:
                result.set_exception(error)

        with self._changed:
            if self._closing:
                raise ShuttingDownError("The server is shutting down.")
            self._visits.append(call)
            self._changed.notify_all()
        if self._thread is None:
            self._take_arrivals()
        return result.result()

    def status(self) -> EngineStatus:
        """A snapshot."""
        with self._changed:
            num_waiting = len(self._scheduler.waiting) + len(self._arrivals)
        totals = self._totals
        return EngineStatus(
            running=len(self._scheduler.running),
            waiting=num_waiting,
            free_blocks=self._cache.pool.free,
            idle_blocks=self._cache.pool.idle,
            total_blocks=self._cache.pool.num_blocks,
            preemptions=self._scheduler.num_preemptions,
            steps=totals.steps,
            computed_tokens=totals.computed_tokens,
            prompt_tokens=totals.prompt_tokens,
            reused_tokens=totals.reused_tokens,
            output_tokens=totals.output_tokens,
            finished=dict(totals.finished),
        )

    def _events(self, request_id: str, events: queue.SimpleQueue[list[Event]]) -> Iterator[Event]:
        try:
            while True:
                for event in events.get():
                    yield event
                    if isinstance(event, Finished):
                        return
        finally:
            self.cancel(request_id)

    def _sequence(self, request: Request, sink: Sink) -> Sequence:
        """The request as work, or the error that says why it can never be."""
        tokens, vocab_size = request.prompt.tokens, self._vocab_size
        if min(tokens) < 0 or max(tokens) >= vocab_size:
            raise InvalidRequestError(
                f"The prompt holds a token outside the model's vocabulary: use ids from 0 to {vocab_size - 1}.",
                param="messages",
            )
        if len(tokens) + 1 > self._context_length:
            raise PromptTooLongError(len(tokens) + 1, self._context_length, "the model's context")
        if not self._cache.fits(len(tokens)):
            raise PromptTooLongError(len(tokens), self.capacity, "the KV cache")
        return Sequence(
            request,
            replace(self._namespace, tenant=request.tenant),
            Sampler(request.sampling, tokens, vocab_size),
            OutputText(self._tokenizer, request.stop),
            sink,
            submitted=self._clock.monotonic(),
        )

    # The engine thread's side.

    def _serve(self) -> None:
        """Step while there is work, sleep while there is none, until `close`."""
        lower = self._cache.lower
        goes_on = False
        while True:
            with self._changed:
                if not goes_on:
                    pause = WRITE_PAUSE if lower is not None and lower.num_waiting else None
                    self._changed.wait_for(self._is_called, timeout=pause)
                self._has_news = False
                if self._stopping:
                    break
            goes_on = False
            try:
                goes_on = self.step()
            except Exception:
                log.exception("a fault outside the model; every request in flight fails with it")
                self._fail_all("A fault in the server ended this request.")
        self._take_arrivals()
        self._fail_all("The server is shutting down.")
        self._cache.close()

    def _is_called(self) -> bool:
        return bool(self._stopping or self._arrivals or self._cancels or self._visits or self._has_news)

    def _wake(self) -> None:
        """The lower tier made headway. On any thread."""
        with self._changed:
            self._has_news = True
            self._changed.notify_all()

    def step(self) -> bool:
        """One step: take arrivals and cancellations, schedule, compute, commit, sample, deliver, persist.

        False if there is nothing more to do before somebody calls or the lower tier makes headway. For the engine
        thread, or for whoever did not start one.
        """
        self._take_arrivals()
        chunks = self._scheduler.schedule()
        if chunks:
            self._compute(chunks)
        else:
            assert self._scheduler.running or not self._scheduler.waiting, "nothing runs, so the first must be admitted"
        return self._persist() or bool(chunks)

    def _compute(self, chunks: list[Chunk]) -> None:
        """The forward pass of a step and what follows from it."""
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        start = self._clock.monotonic()
        try:
            for chunk in chunks:
                self._copy(chunk.sequence)
            logits = self._model.forward([self._run(chunk) for chunk in chunks], self._pool)
        except Exception as fault:
            log.exception("a forward pass over %d sequences failed", len(chunks))
            for chunk in chunks:
                self._fail(chunk.sequence, fault)
            return
        self._totals.add_step(num_tokens)
        if self._cache.lower is not None and num_tokens >= PROMPT_STEP:
            self._cache.lower.rates.add_compute(num_tokens, self._clock.monotonic() - start)
        rows = iter(logits)
        for chunk in chunks:
            row = next(rows) if chunk.is_last else None
            try:
                self._advance(chunk, row)
            except Exception as fault:
                log.exception("request %s failed after its forward pass", chunk.sequence.request.id)
                self._fail(chunk.sequence, fault)

    def _persist(self) -> bool:
        """Send blocks down to the lower tier before a crash takes them; True if more of them can follow at once.

        Complete groups while sequences run, as many blocks as a step can fill; the rest when a request has ended, so
        that it survives as soon as it is answered. What this costs a step is copying the blocks; others write them.
        """
        lower = self._cache.lower
        if lower is None:
            return False
        num_blocks = min(lower.num_waiting, self._blocks_per_step)
        if not self._has_ended:
            num_blocks -= num_blocks % GROUP_BLOCKS
        if num_blocks:
            self._cache.persist(num_blocks)
        self._has_ended = self._has_ended and lower.num_waiting > 0
        return self._has_ended and not lower.tier.is_busy

    def _take_arrivals(self) -> None:
        with self._changed:
            for sequence in self._arrivals:
                self._scheduler.add(sequence)
            cancelled = [self._live[request_id] for request_id in self._cancels if request_id in self._live]
            self._arrivals, self._cancels = [], []
            visits, self._visits = self._visits, []
        for visit in visits:
            visit()
        for sequence in cancelled:
            self._finish(sequence, FinishReason.CANCELLED)

    def _copy(self, sequence: Sequence) -> None:
        """Make the copies a new lease asks for: the shared part of a block that this sequence goes on writing."""
        for copy in sequence.copies:
            self._pool.copy_block(copy.src, copy.dst)
        sequence.copies = ()

    def _run(self, chunk: Chunk) -> Run:
        sequence = chunk.sequence
        assert sequence.lease is not None
        start, end = sequence.num_computed, sequence.num_computed + chunk.num_tokens
        return Run(
            tokens=np.array(sequence.tokens[start:end], dtype=np.int32),
            start=start,
            table=np.array(sequence.lease.table, dtype=np.int32),
            num_logits=int(chunk.is_last),
        )

    def _advance(self, chunk: Chunk, logits: NDArray[np.float32] | None) -> None:
        """Commit what a chunk wrote; with the logits of the last token, choose and deliver the next one."""
        sequence = chunk.sequence
        assert sequence.lease is not None
        sequence.num_computed += chunk.num_tokens
        self._cache.commit(sequence.lease, sequence.tokens, sequence.num_computed)
        if logits is None:
            return
        choice = sequence.sampler.choose(logits[: self._vocab_size])
        ends_turn = choice.token in self._tokenizer.eos_ids and not sequence.request.ignore_eos
        text = "" if ends_turn else sequence.text.push(choice.token)
        reused = None if sequence.num_outputs else sequence.reused_tokens
        generated = Generated(choice.token, text, choice.logprob, choice.alternatives, reused)
        sequence.append(choice.token, self._clock.monotonic())
        if reason := self._finish_reason(sequence, ends_turn):
            self._finish(sequence, reason, generated, message=self._explanation(reason))
        else:
            self._deliver(sequence, [generated])

    def _finish_reason(self, sequence: Sequence, ends_turn: bool) -> FinishReason | None:
        """Why `sequence` ends with the token it has just got; None if it goes on."""
        if ends_turn or sequence.text.stopped:
            return FinishReason.STOP
        if sequence.num_outputs == sequence.request.max_tokens or len(sequence.tokens) == self._context_length:
            return FinishReason.LENGTH
        return None if self._cache.fits(len(sequence.tokens)) else FinishReason.CAPACITY

    def _explanation(self, reason: FinishReason) -> str:
        if reason is not FinishReason.CAPACITY:
            return ""
        return f"The KV cache holds {self.capacity} tokens, and this sequence needs one more even with all to itself."

    def _finish(self, sequence: Sequence, reason: FinishReason, *events: Event, message: str = "") -> None:
        """Give everything back and deliver the last events. Whoever has finished already is left alone."""
        with self._changed:
            if self._live.pop(sequence.request.id, None) is None:
                return
            self._tenants[sequence.tenant] -= 1
            self._changed.notify_all()
        self._has_ended = True
        rest = sequence.text.finish()
        try:
            self._scheduler.remove(sequence)
            if reason in (FinishReason.STOP, FinishReason.LENGTH, FinishReason.CAPACITY):
                self._remember(sequence)
        except Exception:
            log.exception("request %s did not end cleanly", sequence.request.id)
        usage = sequence.usage(self._clock.monotonic())
        self._totals.add_request(reason, usage, was_admitted=sequence.admitted is not None)
        self._deliver(sequence, [*events, Finished(reason, usage, rest, message, sequence.text.stop)])

    def _fail(self, sequence: Sequence, fault: Exception) -> None:
        self._finish(
            sequence, FinishReason.ERROR, message=f"The model failed on this request ({type(fault).__name__}: {fault})."
        )

    def _fail_all(self, message: str) -> None:
        with self._changed:
            taken = [sequence for sequence in self._live.values() if sequence not in self._arrivals]
        for sequence in taken:
            self._finish(sequence, FinishReason.ERROR, message=message)

    def _remember(self, sequence: Sequence) -> None:
        """Keep the ids of an answer for the next turn's prompt; not where a stop string cut text from the tokens."""
        request = sequence.request
        if self._answers is None or not request.cache or sequence.text.stopped:
            return
        outputs = sequence.tokens[len(request.prompt.tokens) :]
        if outputs[-1] in self._tokenizer.eos_ids and not request.ignore_eos:
            del outputs[-1]  # the template writes the end of a turn itself
        self._answers.remember(request.tenant, request.prompt.tokens, sequence.text.shown, outputs)

    def _deliver(self, sequence: Sequence, events: list[Event]) -> None:
        try:
            sequence.sink(events)
        except Exception:
            log.exception("the receiver of request %s failed; the request is cancelled", sequence.request.id)
            self._finish(sequence, FinishReason.CANCELLED)
