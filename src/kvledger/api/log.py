"""One line of JSON per HTTP request, written when the answer and all its sequences have ended."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvledger.api.auth import short
from kvledger.api.metrics import Metrics
from kvledger.clock import Clock
from kvledger.engine.request import Finished

log = logging.getLogger("kvledger.access")

_ROUTINE = frozenset({"GET /health", "GET /metrics"})
"""Asked by machines every few seconds: not worth a line as long as all is well."""

_LONGEST_ROUTE = 200
"""Characters of a route that are logged: what a client makes up can be long."""


class Record:
    """What is known of one HTTP request so far. Lives on the event loop.

    `submit` and `finish` are called for each of its sequences, `answer` once, when there is no more to send. The line
    follows the last of these: a client that leaves may be gone before its sequences have ended.
    """

    def __init__(self, route: str, clock: Clock, metrics: Metrics) -> None:
        self.id: str | None = None
        self.tenant: str | None = None
        """The caller's digest; None until a key was accepted, "" where none is needed."""
        self._route = route
        self._clock = clock
        self._metrics = metrics
        self._arrived = clock.monotonic()
        self._before_engine = 0.0
        self._running = 0
        self._finished: list[Finished] = []
        self._status: int | None = None

    def submit(self) -> None:
        """The engine has taken a sequence."""
        self._running += 1
        self._before_engine = self._clock.monotonic() - self._arrived

    def finish(self, finished: Finished) -> None:
        """A sequence has ended."""
        self._running -= 1
        self._finished.append(finished)
        self._metrics.add_sequence(finished, self._before_engine)
        self._write_if_complete()

    def answer(self, status: int) -> None:
        """The answer has been sent, or will not be."""
        self._status = status
        self._metrics.add_response(status)
        self._write_if_complete()

    def _write_if_complete(self) -> None:
        if self._status is None or self._running or (self._status < 400 and self._route in _ROUTINE):
            return
        if log.isEnabledFor(logging.INFO):
            log.info("%s", msgspec.json.encode(self._line()).decode())

    def _line(self) -> dict[str, Any]:
        """What is not known is left out. Times in seconds; of several choices the prompt counts once."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(self._clock.now(), UTC).isoformat(timespec="milliseconds"),
            "id": self.id,
            "tenant": short(self.tenant) if self.tenant else None,
            "route": self._route[:_LONGEST_ROUTE],
            "status": self._status,
            "duration_s": round(self._clock.monotonic() - self._arrived, 6),
        }
        if usages := [finished.usage for finished in self._finished]:
            least = min(usages, key=lambda usage: usage.reused_tokens)
            line |= {
                "prompt_tokens": least.prompt_tokens,
                "reused_tokens": least.reused_tokens,
                "output_tokens": sum(usage.output_tokens for usage in usages),
                "ttft_s": min(
                    (
                        round(self._before_engine + usage.queued + usage.prefill, 6)
                        for usage in usages
                        if usage.output_tokens
                    ),
                    default=None,
                ),
                "finish_reason": ",".join(dict.fromkeys(finished.reason.value for finished in self._finished)),
                "miss_reason": least.miss.reason.value if least.miss else None,
                "miss_position": least.miss.position if least.miss else None,
                "miss_path": least.miss.path if least.miss else None,
            }
        return {name: value for name, value in line.items() if value is not None}


class Recorder:
    """ASGI middleware: gives every request a `Record`, as `request.state.record`, and completes it."""

    def __init__(self, app: ASGIApp, clock: Clock, metrics: Metrics) -> None:
        self._app = app
        self._clock = clock
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(f"{scope['method']} {scope['path']}", self._clock, self._metrics)
        scope.setdefault("state", {})["record"] = record
        status = 500  # what an exception on its way out becomes

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        finally:
            record.answer(status)


def log_to_stderr() -> None:
    """Write the lines of this log, and nothing else of them anywhere, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
