"""The server with a stand-in for its model and a clock that a test moves."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvledger.api.app import create_app
from kvledger.api.auth import Keys
from kvledger.api.books import Books
from kvledger.api.service import Service
from kvledger.clock import ManualClock, SystemClock
from kvledger.errors import InvalidRequestError
from kvledger.ledger.receipt import Receipt
from kvledger.providers.decode import decode
from kvledger.providers.gemini.rules import GeminiRules
from kvledger.testing.standin import CONTEXT, Script, StandIn
from kvledger.testing.tokenizer import EstimatingTokenizer
from kvledger.text.answers import Answers
from kvledger.text.template import ChatTemplate

NAME = "stand-in"
"""The model's own name; a provider's model name in a request brings that provider's rules."""


LATEST = 4_102_444_800.0
"""The first second of 2100: no rule or price reaches as far."""


class Kept:
    """Receipts of this process, in the order of their making."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []

    def submit(self, receipt: Receipt) -> Future[None]:
        self.receipts.append(receipt)
        done: Future[None] = Future()
        done.set_result(None)
        return done


class Advance(msgspec.Struct, forbid_unknown_fields=True):
    advance: float


class Scripts(msgspec.Struct, forbid_unknown_fields=True):
    answers: list[Script]


_ADVANCE = msgspec.json.Decoder(Advance)
_SCRIPTS = msgspec.json.Decoder(Scripts)


@dataclass
class Emulator:
    """One emulator: `app` is what a server serves."""

    service: Service
    engine: StandIn
    clock: ManualClock
    kept: Kept
    app: Starlette

    @staticmethod
    def create(
        *,
        persona: str | None = None,
        latency: float = 0.0,
        gemini_drop: float = 0.0,
        seed: int = 0,
        now: float | None = None,
    ) -> Emulator:
        """An emulator whose clock stands at `now` (Unix time; the machine's own unless given) until it is moved.

        Raises `InvalidRequestError` for a persona that is none, `ValueError` for a share that is none.
        """
        clock = ManualClock(SystemClock().now() if now is None else now)
        tokenizer = EstimatingTokenizer()
        engine, kept = StandIn(tokenizer, clock, latency=latency), Kept()
        service = Service(
            engine=engine,
            tokenizer=tokenizer,
            template=ChatTemplate(tokenizer.chat_template, tokenizer, clock=clock, limit=CONTEXT - 1),
            answers=Answers(),
            model_names=(NAME,),
            keys=Keys(),
            clock=clock,
            workers=ThreadPoolExecutor(4, thread_name_prefix="kvledger-prompt"),
            started=int(clock.now()),
            persona=persona,
            books=Books(clock, NAME, writer=kept, gemini=GeminiRules(drop=gemini_drop, seed=seed)),
        )
        app = create_app(service, ROUTES)
        emulator = Emulator(service, engine, clock, kept, app)
        app.state.emulator = emulator
        return emulator

    def advance(self, seconds: float) -> float:
        """Move the clock and return its time; raises `InvalidRequestError` for a step back, or one past `LATEST`."""
        if self.clock.now() + seconds > LATEST:
            raise InvalidRequestError(
                "`advance` would move the clock past the year 2100: give fewer seconds.", param="advance"
            )
        try:
            self.clock.advance(seconds)
        except ValueError as error:
            raise InvalidRequestError(f"`advance`: {error}.", param="advance") from error
        self.service.books.settle()
        return self.clock.now()

    def reset(self) -> None:
        """Forget receipts, scripts and everything cached. The clock stays."""
        self.engine.forget()
        self.service.forget()
        self.kept.receipts.clear()

    def close(self, drain: float) -> None:
        self.service.closing = True
        self.engine.close(drain=drain)


async def _show_clock(request: Request) -> Response:
    return _json({"now": _of(request).clock.now()})


async def _move_clock(request: Request) -> Response:
    asked = decode(_ADVANCE, await _body(request))
    return _json({"now": _of(request).advance(asked.advance)})


async def _show_requests(request: Request) -> Response:
    receipts = [msgspec.Raw(receipt.encoded()) for receipt in _of(request).kept.receipts]
    return _json({"requests": receipts})


async def _reset(request: Request) -> Response:
    _of(request).reset()
    return _json({"requests": []})


async def _add_answers(request: Request) -> Response:
    asked = decode(_SCRIPTS, await _body(request))
    return _json({"waiting": _of(request).engine.play(asked.answers)})


ROUTES = [
    Route("/emulator/clock", _show_clock, methods=["GET"]),
    Route("/emulator/clock", _move_clock, methods=["POST"]),
    Route("/emulator/requests", _show_requests, methods=["GET"]),
    Route("/emulator/requests", _reset, methods=["DELETE"]),
    Route("/emulator/answers", _add_answers, methods=["POST"]),
]


def _of(request: Request) -> Emulator:
    emulator: Emulator = request.app.state.emulator
    return emulator


async def _body(request: Request) -> bytes:
    async with _of(request).service.bodies.read(request) as raw:
        return raw


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
