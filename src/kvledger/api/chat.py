"""`POST /v1/chat/completions`: from the request to the engine and back."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from kvledger.api.errors import GenerationFailedError
from kvledger.api.generation import Generation
from kvledger.api.service import Service
from kvledger.api.stream import EventStream
from kvledger.engine.request import Event, Finished, Generated, Request, Sampling, TokenLogprob, Usage
from kvledger.errors import InvalidRequestError, ShuttingDownError
from kvledger.providers.openai import reply
from kvledger.providers.openai.chat import ChatRequest, parse
from kvledger.text.prompt import Prompt

_PLAIN_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)


async def create_chat_completion(request: HTTPRequest) -> Response:
    service: Service = request.app.state.service
    tenant = service.keys.tenant(request.headers.get("authorization"))
    async with service.bodies.read(request) as body:
        # Reading and tokenising a long prompt takes seconds; the event loop has other clients to serve meanwhile.
        asked, prompt = await asyncio.get_running_loop().run_in_executor(
            service.workers, prepare, service, body, tenant
        )
    heading = reply.Heading(f"chatcmpl-{uuid.uuid4().hex}", int(service.clock.now()), asked.model)
    generation = Generation(service.engine, service.postbox, sequences(asked, prompt, tenant, heading.id))
    generation.watch(request.receive)
    exchange = Exchange(service, asked, prompt, heading, generation)
    headers = {"x-request-id": heading.id}
    if ignored := [name for name in asked.ignored if _PLAIN_NAME.fullmatch(name)]:
        headers["x-kvledger-ignored"] = ", ".join(ignored[:32])
    if asked.stream:
        batches = exchange.stream()
        return EventStream(await anext(batches), batches, headers)
    return Response(await exchange.whole(), headers=headers, media_type="application/json")


def prepare(service: Service, body: bytes, tenant: str) -> tuple[ChatRequest, Prompt]:
    """Check a body and render its prompt; raises what `parse` and the template raise, and 404 for another model."""
    asked = parse(body)
    service.check_model(asked.model)
    for token, _ in asked.logit_bias:
        if token >= service.tokenizer.vocab_size:
            raise InvalidRequestError(
                f"`logit_bias` names token {token}; this model has tokens 0 to {service.tokenizer.vocab_size - 1}.",
                param="logit_bias",
            )
    return asked, service.template.render(asked.chat, answers=service.answers, tenant=tenant)


def sequences(asked: ChatRequest, prompt: Prompt, tenant: str, id: str) -> list[Request]:
    """One engine request per choice. Choice `i` of a seeded request is what `seed + i` gives on its own."""
    return [
        Request(
            id=f"{id}-{choice}",
            prompt=prompt,
            sampling=Sampling(
                temperature=asked.temperature,
                top_k=asked.top_k,
                top_p=asked.top_p,
                min_p=asked.min_p,
                repetition_penalty=asked.repetition_penalty,
                presence_penalty=asked.presence_penalty,
                frequency_penalty=asked.frequency_penalty,
                seed=None if asked.seed is None else asked.seed + choice,
                logprobs=asked.logprobs,
                logit_bias=asked.logit_bias,
            ),
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            ignore_eos=asked.ignore_eos,
            tenant=tenant,
        )
        for choice in range(asked.choices)
    ]


@dataclass
class Choice:
    """One choice as it grows. `untold` are log probabilities of tokens whose text has not been shown yet."""

    texts: list[str] = field(default_factory=list)
    untold: list[reply.TokenLogprob] = field(default_factory=list)
    finish_reason: str = ""
    usage: Usage | None = None


class Exchange:
    """One request and its answer, read from the engine exactly once: by `stream` or by `whole`."""

    def __init__(
        self,
        service: Service,
        asked: ChatRequest,
        prompt: Prompt,
        heading: reply.Heading,
        generation: Generation,
    ) -> None:
        self._service = service
        self._asked = asked
        self._prompt = prompt
        self._heading = heading
        self._generation = generation
        self._choices = [Choice() for _ in range(asked.choices)]

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, in batches as the engine delivers. The first batch comes with the first engine events, so
        what fails before that can still be answered with a status."""
        chunks = reply.ChunkStream(self._heading, self._asked.include_usage)
        unsent = [chunks.start(index) for index in range(len(self._choices))]
        async with aclosing(self._events()) as batches:
            async for batch in batches:
                for index, event in batch:
                    choice = self._choices[index]
                    self._take(choice, event)
                    if event.text or (choice.untold and choice.finish_reason):
                        unsent.append(chunks.delta(index, event.text, choice.untold))
                        choice.untold = []
                    if isinstance(event, Finished):
                        unsent.append(chunks.finish(index, choice.finish_reason))
                if unsent:
                    yield b"".join(unsent)
                    unsent = []
        yield (chunks.total(self._usage()) if self._asked.include_usage else b"") + reply.DONE

    async def whole(self) -> bytes:
        """The JSON body of an answer in one piece."""
        async with aclosing(self._events()) as batches:
            async for batch in batches:
                for index, event in batch:
                    self._take(self._choices[index], event)
        return self._heading.completion(
            [
                reply.Choice(
                    index,
                    reply.AssistantMessage(content="".join(choice.texts)),
                    choice.finish_reason,
                    reply.Logprobs(choice.untold) if self._asked.logprobs is not None else None,
                )
                for index, choice in enumerate(self._choices)
            ],
            self._usage(),
        )

    async def _events(self) -> AsyncGenerator[list[tuple[int, Event]], None]:
        """The engine's events; however the reading ends, the sequences end with it."""
        try:
            async with aclosing(self._generation.batches()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self._generation.close()

    def _take(self, choice: Choice, event: Event) -> None:
        if event.text:
            choice.texts.append(event.text)
        if isinstance(event, Generated):
            if event.logprob is not None:
                choice.untold.append(self._logprob(event.logprob, event.alternatives))
            return
        if event.reason.value not in reply.FINISH_REASONS:
            failed = ShuttingDownError if self._service.closing else GenerationFailedError
            raise failed(event.message or "The server ended this request early.")
        choice.finish_reason = reply.FINISH_REASONS[event.reason.value]
        choice.usage = event.usage

    def _logprob(self, chosen: TokenLogprob, alternatives: Sequence[TokenLogprob]) -> reply.TokenLogprob:
        token_bytes = self._service.tokenizer.token_bytes

        def shown(entry: TokenLogprob) -> tuple[str, float, list[int]]:
            raw = token_bytes(entry.token)
            return raw.decode(errors="replace"), entry.logprob, list(raw)

        return reply.TokenLogprob(*shown(chosen), [reply.TopLogprob(*shown(entry)) for entry in alternatives])

    def _usage(self) -> reply.Usage:
        """Totals over the choices. They share one prompt, so it counts once, as reused only as far as all reused it."""
        usages = [choice.usage for choice in self._choices if choice.usage is not None]
        return reply.usage(
            prompt_tokens=len(self._prompt.tokens),
            cached_tokens=min(usage.reused_tokens for usage in usages),
            completion_tokens=sum(usage.output_tokens for usage in usages),
        )
