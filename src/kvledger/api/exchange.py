"""The one path of every request, whoever's SDK sent it: from its key to its receipt."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TypeVar, TypeVarTuple

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from kvledger.api.auth import Caller
from kvledger.api.books import Page
from kvledger.api.errors import Failure, GenerationFailedError, Refusal
from kvledger.api.generation import Generation
from kvledger.api.log import Record
from kvledger.api.names import Named
from kvledger.api.service import Service
from kvledger.api.stream import EventStream
from kvledger.engine.request import Event, Finished, FinishReason, Generated, Request, TokenLogprob
from kvledger.errors import InvalidRequestError, KvledgerError, ShuttingDownError
from kvledger.ledger.budget import Answer as Decided
from kvledger.ledger.budget import Decision
from kvledger.providers.dialect import Answer, Asked, Dialect, Reply, TokenScore, ToolCall
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import Rulebook
from kvledger.text.prompt import Prompt
from kvledger.text.tool_calls import ToolCallReader, WrittenCall

log = logging.getLogger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

_PLAIN_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_ANSWERED = frozenset((FinishReason.STOP, FinishReason.LENGTH, FinishReason.CAPACITY))


class Manner:
    """A dialect, and what its routes do besides the common path: nothing, unless a subclass says so."""

    media_type = "text/event-stream; charset=utf-8"
    prewarmed = Answer("", FinishReason.LENGTH)
    """The answer to a request for none."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect

    def bind(self, tenant: str) -> None:
        """The caller is known."""

    def complete(self, asked: Asked, tenant: str) -> Asked:
        """The request with what it only names put in. On a worker thread, after the model was found."""
        return asked

    def located(self, prompt: Prompt, asked: Asked, tenant: str) -> Prompt:
        """`prompt` with its segments under the paths that they have in `asked.body`."""
        return prompt

    def earlier(self, asked: Asked, rules: Rulebook, tenant: str) -> ProviderPrompt | None:
        """The prompt that the request wants to be compared with."""
        return None

    def opened(self, reply: Reply, page: Page, earlier: ProviderPrompt | None) -> None:
        """The account is known, and nothing was sent yet."""

    def ended(self, reply: Reply, asked: Asked, tenant: str, sent: bytes) -> None:
        """The answer is complete: `sent` is its body, or the last events of its stream."""

    def broken(self, reply: Reply, failure: Failure) -> bytes:
        """The events that end a stream which breaks in the middle."""
        return self.dialect.error_event(failure.status, failure.message)


async def answer(request: HTTPRequest, manner: Manner, *, model: str = "", stream: bool = False) -> Response:
    """Answer a request for text. `model` and `stream` are given where the route carries them."""
    service: Service = request.app.state.service
    record: Record = request.state.record
    arrived = service.clock.monotonic()
    caller = admit(request, manner.dialect)
    manner.bind(caller.tenant)
    decision = service.books.admit(caller)
    if not decision:
        raise refusal(decision, manner.dialect)
    async with service.bodies.read(request) as raw:
        # Reading and tokenising a long prompt takes seconds; the event loop has other clients to serve meanwhile.
        prepared = await in_worker(service, prepare, service, manner, raw, caller, model, stream)
    id = uuid.uuid4().hex
    asked = prepared.asked
    reply = manner.dialect.reply(asked, id=id, created=service.clock.now())
    record.id = reply.id
    page = Page(
        reply.id, 0.0, manner.dialect.api, prepared.named, asked, caller, prepared.prompt, prepared.judged, None
    )
    # From here to the submission nothing waits: accounts are opened in the order in which the engine takes requests.
    with known_model():
        service.books.judge(page, prepared.earlier)
    manner.opened(reply, page, prepared.earlier)
    exchange = Exchange(service, manner, reply, page)
    page.before_engine = service.clock.monotonic() - arrived
    exchange.submit(record)
    exchange.watch(request)
    headers = {"x-request-id": reply.id, "request-id": reply.id}
    if ignored := [name for name in asked.ignored if _PLAIN_NAME.fullmatch(name)]:
        headers["x-kvledger-ignored"] = ", ".join(ignored[:32])
    if asked.stream:
        batches = exchange.stream()
        headers["content-type"] = manner.media_type
        return EventStream(await anext(batches), batches, headers, lambda failure: manner.broken(reply, failure))
    return Response(await exchange.whole(), headers=headers, media_type="application/json")


def admit(request: HTTPRequest, dialect: Dialect) -> Caller:
    """Who calls, by the key where `dialect`'s SDK puts it; raises `Refusal` with 401."""
    service: Service = request.app.state.service
    request.state.dialect = dialect
    caller = service.keys.admit(dialect.key(request.headers, request.query_params))
    request.state.record.tenant = caller.tenant
    return caller


def refusal(decision: Decision, dialect: Dialect) -> Refusal:
    """A key that may not go on, in the way of the provider: Anthropic bills with 402, the others answer 429."""
    if decision.answer is Decided.OVER_RATE:
        wait = {"retry-after": str(max(1, math.ceil(decision.retry_after)))}
        return Refusal(HTTPStatus.TOO_MANY_REQUESTS, decision.message, code="rate_limit_exceeded", headers=wait)
    status = HTTPStatus.PAYMENT_REQUIRED if dialect.api == "messages" else HTTPStatus.TOO_MANY_REQUESTS
    return Refusal(status, decision.message, code="insufficient_quota", headers={"x-should-retry": "false"})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready for the engine. `judged` is what the rulebook judges, None for the local model."""

    asked: Asked
    named: Named
    prompt: Prompt
    judged: ProviderPrompt | None
    earlier: ProviderPrompt | None


def prepare(service: Service, manner: Manner, raw: bytes, caller: Caller, model: str, stream: bool) -> Prepared:
    """Check a body, find its model, render its prompt, and read it as the provider's cache does."""
    asked = manner.dialect.parse(raw, model=model, stream=stream)
    named, asked = named_in(service, asked, manner.dialect.api)
    asked = manner.complete(asked, caller.tenant)
    prompt = render(service, asked, caller)
    with known_model():
        located = manner.located(prompt, asked, caller.tenant)
        judged = service.books.read(named, asked, manner.dialect.api, caller.tenant, located, service)
        earlier = manner.earlier(asked, service.books.rules(named), caller.tenant) if judged else None
    return Prepared(asked, named, prompt, judged, earlier)


def named_in(service: Service, asked: Asked, api: str) -> tuple[Named, Asked]:
    """The model that a request means, and the request under that model's name; raises `Refusal` with 404."""
    named = service.names.find(asked.model, api)
    if named.model != asked.model:
        asked = replace(asked, model=named.model, body={**asked.body, "model": named.model})
    return named, asked


def render(service: Service, asked: Asked, caller: Caller) -> Prompt:
    """The prompt in tokens, by the template of the model that answers."""
    for token, _ in asked.sampling.logit_bias:
        if token >= service.tokenizer.vocab_size:
            raise InvalidRequestError(
                f"`logit_bias` names token {token}; this model has tokens 0 to {service.tokenizer.vocab_size - 1}.",
                param="logit_bias",
            )
    return service.template.render(asked.chat, answers=service.answers, tenant=caller.tenant)


@contextmanager
def known_model() -> Iterator[None]:
    """Turns a rulebook's complaint about the model into what providers answer then: 404."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param != "model":
            raise
        raise Refusal(HTTPStatus.NOT_FOUND, str(error), param="model", code="model_not_found") from None


async def in_worker(service: Service, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """What `call` returns, run where it does not hold up the event loop."""
    return await asyncio.get_running_loop().run_in_executor(service.workers, call, *arguments)


@dataclass
class Choice:
    """One choice as it grows. `untold` are the scores of tokens whose text has not been shown yet."""

    reader: ToolCallReader
    texts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    scores: list[TokenScore] = field(default_factory=list)
    untold: list[TokenScore] = field(default_factory=list)
    finished: Finished | None = None

    def answer(self) -> Answer:
        assert self.finished is not None
        return Answer(
            "".join(self.texts), self.finished.reason, tuple(self.calls), tuple(self.scores), self.finished.stop
        )


class Exchange:
    """One request and its answer, read from the engine exactly once: by `stream` or by `whole`.

    The receipt is made when the last sequence has ended, whatever ended it and whether anybody still listens: so there
    is one, and only one, for everything that the engine took. The last bytes of an answer wait until it is safe.
    """

    def __init__(self, service: Service, manner: Manner, reply: Reply, page: Page) -> None:
        self._service = service
        self._manner = manner
        self._reply = reply
        self._page = page
        self._asked = page.asked
        names = [str(tool["function"]["name"]) for tool in page.asked.chat.tools if "function" in tool]
        self._choices = [Choice(ToolCallReader(names)) for _ in range(page.asked.choices)]
        self._has_begun = False
        self._output = 0
        self._written: asyncio.Future[Future[None]] = asyncio.get_running_loop().create_future()
        self._generation: Generation

    def submit(self, record: Record) -> None:
        """Give the request to the engine and enter it into the books; raises what the engine refuses it with."""
        self._generation = Generation(
            self._service.engine, self._service.postbox, sequences(self._page), record, self._close
        )
        self._service.books.enter(self._page)

    def watch(self, request: HTTPRequest) -> None:
        """Cancel everything as soon as the client goes away."""
        self._generation.watch(request.receive)

    def _close(self, finished: Sequence[Finished]) -> None:
        """Every sequence has ended: make the receipt."""
        try:
            receipt, written = self._service.books.close(self._page, finished)
            self._output = receipt.usage.output
            self._written.set_result(written)
        except Exception as error:  # whoever waits for it must hear of it
            log.exception("no receipt could be made of request %s", self._page.id)
            self._written.set_exception(error)

    async def _recorded(self) -> None:
        """Wait until the receipt is safe; raises `LedgerError` if it cannot be kept."""
        await asyncio.wrap_future(await self._written)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Encoded events, in batches as the engine delivers. The first batch comes with the first engine events, so
        what fails before that can still be answered with a status."""
        reply, page = self._reply, self._page
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                unsent: list[bytes] = []
                try:
                    for index, event in batch:
                        unsent += self._show(index, event)
                except KvledgerError:
                    if unsent:
                        yield b"".join(unsent)
                    self._generation.close()
                    await self._recorded()
                    raise
                if data := b"".join(unsent):
                    yield data
        await self._recorded()
        last = reply.end(page.usage(self._output), page.account)
        self._manner.ended(reply, self._asked, page.caller.tenant, last)
        yield last

    async def whole(self) -> bytes:
        """The body of an answer in one piece."""
        async with aclosing(self._batches()) as batches:
            async for batch in batches:
                try:
                    for index, event in batch:
                        self._take(self._choices[index], event)
                except KvledgerError:
                    self._generation.close()
                    await self._recorded()
                    raise
        await self._recorded()
        answers = [self._answer(choice) for choice in self._choices]
        body = self._reply.whole(answers, self._page.usage(self._output), self._page.account)
        self._manner.ended(self._reply, self._asked, self._page.caller.tenant, body)
        return body

    async def _batches(self) -> AsyncGenerator[list[tuple[int, Event]], None]:
        """The engine's events; however the reading ends, the sequences end with it."""
        try:
            async with aclosing(self._generation.batches()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._generation.close()

    def _show(self, index: int, event: Event) -> list[bytes]:
        """The encoded events of what happened to a choice."""
        reply, choice, had_begun = self._reply, self._choices[index], self._has_begun
        pieces = self._take(choice, event)
        shown = [] if had_begun else [reply.start(self._page.usage())]
        for piece in pieces:
            if isinstance(piece, str):
                shown.append(reply.text(index, piece, choice.untold))
                choice.untold = []
            else:
                shown.append(reply.tool_call(index, piece))
        if choice.finished is not None:
            if choice.untold:
                shown.append(reply.text(index, "", choice.untold))
                choice.untold = []
            shown.append(reply.finish(index, self._answer(choice)))
        return shown

    def _take(self, choice: Choice, event: Event) -> list[str | ToolCall]:
        """Note what happened to a choice; returns what can now be shown of it."""
        if isinstance(event, Finished):
            if event.reason not in _ANSWERED:
                failed = ShuttingDownError if self._service.closing else GenerationFailedError
                raise failed(event.message or "The server ended this request early.")
            choice.finished = event
        self._begin(event)
        if self._asked.max_tokens == 0:
            return []
        if isinstance(event, Generated) and event.logprob is not None:
            score = self._score(event.logprob, event.alternatives)
            choice.scores.append(score)
            choice.untold.append(score)
        found = choice.reader.push(event.text) if event.text else []
        if choice.finished is not None:
            found += choice.reader.finish()
        shown: list[str | ToolCall] = []
        for piece in found:
            if isinstance(piece, WrittenCall):
                call = ToolCall(f"call_{uuid.uuid4().hex[:24]}", piece.name, piece.arguments)
                choice.calls.append(call)
                shown.append(call)
            else:
                choice.texts.append(piece)
                shown.append(piece)
        return shown

    def _begin(self, event: Event) -> None:
        """With the first event of any choice the response begins."""
        if self._has_begun:
            return
        self._has_begun = True
        reused = event.usage.reused_tokens if isinstance(event, Finished) else event.reused_tokens
        if reused is not None:
            self._page.reused = reused
        self._service.books.begin(self._page)

    def _answer(self, choice: Choice) -> Answer:
        return self._manner.prewarmed if self._asked.max_tokens == 0 else choice.answer()

    def _score(self, chosen: TokenLogprob, alternatives: Sequence[TokenLogprob]) -> TokenScore:
        token_bytes = self._service.tokenizer.token_bytes

        def shown(entry: TokenLogprob, others: tuple[TokenScore, ...] = ()) -> TokenScore:
            raw = token_bytes(entry.token)
            return TokenScore(raw.decode(errors="replace"), entry.logprob, tuple(raw), others)

        return shown(chosen, tuple(map(shown, alternatives)))


def sequences(page: Page) -> list[Request]:
    """One engine request per choice. Choice `i` of a seeded request is what `seed + i` gives on its own.

    A request for no output computes its prompt all the same, and with it a token that nobody is told of.
    """
    asked, seed = page.asked, page.asked.sampling.seed
    return [
        Request(
            id=f"{page.id}-{choice}",
            prompt=page.prompt,
            sampling=replace(asked.sampling, seed=None if seed is None else seed + choice),
            max_tokens=1 if asked.max_tokens == 0 else asked.max_tokens,
            stop=asked.stop,
            ignore_eos=asked.ignore_eos,
            tenant=page.caller.tenant,
        )
        for choice in range(asked.choices)
    ]
