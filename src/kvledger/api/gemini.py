"""Gemini's routes: `models/MODEL:generateContent` and its kin, and `cachedContents`."""

from __future__ import annotations

import uuid
from dataclasses import replace
from http import HTTPStatus

from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response

from kvledger.api.auth import Caller
from kvledger.api.errors import Refusal
from kvledger.api.exchange import Manner, admit, answer, in_worker, named_in, render
from kvledger.api.service import Service
from kvledger.api.shapes import GEMINI
from kvledger.errors import InvalidRequestError
from kvledger.providers.dialect import Asked
from kvledger.providers.gemini.caches import CachedContent, Draft, encoded_page, parse_draft, with_cache
from kvledger.providers.gemini.generate import GeminiGenerate

_ACTIONS = ("generateContent", "streamGenerateContent", "countTokens")


async def act_on_model(request: Request) -> Response:
    """`POST` to `models/MODEL:ACTION`."""
    service: Service = request.app.state.service
    model, _, action = str(request.path_params["name"]).rpartition(":")
    if action not in _ACTIONS:
        request.state.dialect = GEMINI
        raise Refusal(HTTPStatus.NOT_FOUND, f"There is no action {action[:40]!r}: use {', '.join(_ACTIONS)}.")
    if action == "countTokens":
        return await _count_tokens(request, service, model)
    stream = action == "streamGenerateContent"
    framed_as_array = stream and request.query_params.get("alt") != "sse"
    manner = GenerateManner(service, GeminiGenerate("array" if framed_as_array else "sse"))
    return await answer(request, manner, model=model, stream=stream)


class CachedContentList(HTTPEndpoint):
    """`cachedContents`."""

    async def post(self, request: Request) -> Response:
        service: Service = request.app.state.service
        caller = admit(request, GEMINI)
        async with service.bodies.read(request) as raw:
            draft, tokens = await in_worker(service, _measure, service, raw, caller)
        service.books.settle()
        content = service.books.caches.create(draft, scope=caller.tenant, id=uuid.uuid4().hex[:24], tokens=tokens)
        return _json(content.encoded())

    async def get(self, request: Request) -> Response:
        service: Service = request.app.state.service
        caller, query = admit(request, GEMINI), request.query_params
        size = query.get("pageSize", "0")
        if not size.isdecimal():
            raise InvalidRequestError("`pageSize` must be a whole number.", param="pageSize")
        page = service.books.caches.list(scope=caller.tenant, size=int(size), token=query.get("pageToken", ""))
        return _json(encoded_page(*page))


class OneCachedContent(HTTPEndpoint):
    """`cachedContents/ID`."""

    async def get(self, request: Request) -> Response:
        service: Service = request.app.state.service
        return _json(service.books.caches.get(_name(request), scope=admit(request, GEMINI).tenant).encoded())

    async def patch(self, request: Request) -> Response:
        service: Service = request.app.state.service
        caller = admit(request, GEMINI)
        async with service.bodies.read(request) as raw:
            return _json(service.books.caches.update(_name(request), raw, scope=caller.tenant).encoded())

    async def delete(self, request: Request) -> Response:
        service: Service = request.app.state.service
        service.books.caches.delete(_name(request), scope=admit(request, GEMINI).tenant)
        service.books.settle()
        return _json(b"{}")


class GenerateManner(Manner):
    """`generateContent`: what a cached content holds is put in front, and a stream is framed as the query asks."""

    def __init__(self, service: Service, dialect: GeminiGenerate) -> None:
        super().__init__(dialect)
        self._service = service
        self.media_type = dialect.media_type

    def complete(self, asked: Asked, tenant: str) -> Asked:
        return _complete(self._service, asked, tenant)


async def _count_tokens(request: Request, service: Service, model: str) -> Response:
    caller = admit(request, GEMINI)

    def count(raw: bytes) -> int:
        _, asked = named_in(service, GEMINI.parse_count(raw, model=model), GEMINI.api)
        return len(render(service, _complete(service, asked, caller.tenant), caller).tokens)

    async with service.bodies.read(request) as raw:
        tokens = await in_worker(service, count, raw)
    return _json(GEMINI.count(tokens))


def _complete(service: Service, asked: Asked, tenant: str) -> Asked:
    name = asked.body.get("cachedContent")
    if not name:
        return asked
    cached: CachedContent = service.books.caches.get(str(name), scope=tenant)
    return with_cache(asked, cached)


def _measure(service: Service, raw: bytes, caller: Caller) -> tuple[Draft, int]:
    """What to cache, under the name that the model answers to, and its tokens."""
    draft = parse_draft(raw)
    asked = Asked(model=draft.model, chat=draft.chat, body=draft.body)
    named, asked = named_in(service, asked, GEMINI.api)
    prompt = service.template.render(asked.chat, generation_prompt=False, tenant=caller.tenant)
    return replace(draft, model=named.model, body=asked.body), len(prompt.tokens)


def _name(request: Request) -> str:
    return f"cachedContents/{request.path_params['id']}"


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
