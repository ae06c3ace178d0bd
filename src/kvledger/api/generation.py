"""From the engine's thread to the event loop: the sequences behind one HTTP request, and their events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from kvledger.cache import Namespace, PromptCache
from kvledger.engine.request import Event, Finished, Request
from kvledger.engine.status import EngineStatus

if TYPE_CHECKING:
    from kvledger.api.log import Record

T = TypeVar("T")


class Engine(Protocol):
    """What the HTTP side needs of the engine."""

    @property
    def namespace(self) -> Namespace: ...
    def submit(self, request: Request, sink: Callable[[list[Event]], None]) -> None: ...
    def cancel(self, request_id: str) -> None: ...
    def status(self) -> EngineStatus: ...
    def with_cache(self, visit: Callable[[PromptCache], T]) -> T: ...


class Postbox:
    """Carries events across threads, waking the event loop once for all that a step of the engine produced.

    `_waiting` is appended to by the engine's thread and emptied by the event loop; both operations are atomic. The flag
    is cleared before the emptying, so an event that comes too late for one delivery schedules the next.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Generation, int, list[Event]]] = deque()
        self._scheduled = False

    def sink(self, generation: Generation, choice: int) -> Callable[[list[Event]], None]:
        """A function for the engine's thread that delivers to `generation` on the running event loop."""
        loop = asyncio.get_running_loop()

        def post(events: list[Event]) -> None:
            self._waiting.append((generation, choice, events))
            if not self._scheduled:
                self._scheduled = True
                with suppress(RuntimeError):  # the loop is closed: nobody is left to read
                    loop.call_soon_threadsafe(self._deliver)

        return post

    def _deliver(self) -> None:
        self._scheduled = False
        while self._waiting:
            generation, choice, events = self._waiting.popleft()
            generation.put(choice, events)


class Generation:
    """The sequences that answer one HTTP request: submitted, read and ended together. Lives on the event loop.

    Events that nobody reads wait here; there can be no more of them than `max_tokens` allows, and the engine does not
    wait for them.
    """

    def __init__(
        self,
        engine: Engine,
        postbox: Postbox,
        requests: Sequence[Request],
        record: Record,
        ended: Callable[[Sequence[Finished]], None],
    ) -> None:
        """Submit all of `requests`, or none of them when the engine refuses one (its error is raised).

        `record` hears of every sequence that the engine took, and of its end; `ended` is called once, when all of them
        have ended, whether anybody reads the events or not.
        """
        self._engine = engine
        self._record = record
        self._ids = [request.id for request in requests]
        self._running = len(requests)
        self._ended = ended
        self._finished: list[Finished] = []
        self._arrived: list[tuple[int, Event]] = []
        self._changed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None
        self._gone = False
        try:
            for choice, request in enumerate(requests):
                engine.submit(request, postbox.sink(self, choice))
                record.submit()
        except Exception:
            self.close()
            raise

    def watch(self, receive: Receive) -> None:
        """Cancel everything as soon as the client goes away. Only once the request body has been read."""
        self._watcher = asyncio.create_task(self._wait_for_disconnect(receive))

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._cancel()
        self._changed.set()

    def put(self, choice: int, events: Sequence[Event]) -> None:
        """Take in events of one choice; called by the postbox."""
        self._arrived += [(choice, event) for event in events]
        for event in events:
            if isinstance(event, Finished):
                self._running -= 1
                self._finished.append(event)
                self._record.finish(event)
        self._changed.set()
        if not self._running:
            self._ended(self._finished)

    async def batches(self) -> AsyncGenerator[list[tuple[int, Event]], None]:
        """What has arrived since the last time, until every choice has finished.

        Raises `ClientDisconnect` when there is nobody left to answer.
        """
        finished = False
        while not finished:
            await self._changed.wait()
            self._changed.clear()
            if self._gone:
                raise ClientDisconnect
            finished = not self._running
            batch, self._arrived = self._arrived, []
            yield batch

    def close(self) -> None:
        """End whatever still runs. Every way out of a request leads here; twice is fine."""
        if self._watcher is not None:
            self._watcher.cancel()
        self._cancel()

    def _cancel(self) -> None:
        if self._running:
            for request_id in self._ids:
                self._engine.cancel(request_id)
