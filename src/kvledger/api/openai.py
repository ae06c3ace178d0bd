"""OpenAI's routes: Chat Completions, and Responses with what it stores."""

from __future__ import annotations

import re
from dataclasses import replace
from http import HTTPStatus

import msgspec
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response

from kvledger.api.counted import Estimate
from kvledger.api.errors import Failure, Refusal
from kvledger.api.exchange import Manner, admit, answer
from kvledger.api.service import Service
from kvledger.api.shapes import OPENAI
from kvledger.engine.request import FinishReason
from kvledger.providers.dialect import Answer, Asked, Reply
from kvledger.providers.openai.response_reply import ResponseReply
from kvledger.providers.openai.responses import OpenAIResponses
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import Rulebook
from kvledger.text.prompt import Prompt

_INPUT = re.compile(r"^input\[(\d+)\]")


async def create_chat_completion(request: Request) -> Response:
    return await answer(request, Manner(OPENAI))


async def create_response(request: Request) -> Response:
    return await answer(request, ResponsesManner(request.app.state.service))


class StoredResponse(HTTPEndpoint):
    """`GET` and `DELETE` of `/v1/responses/{id}`."""

    async def get(self, request: Request) -> Response:
        service: Service = request.app.state.service
        id: str = request.path_params["id"]
        body = service.responses.get(admit(request, OPENAI).tenant, id)
        if body is None:
            raise _not_found(id)
        return Response(body, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        service: Service = request.app.state.service
        id: str = request.path_params["id"]
        tenant = admit(request, OPENAI).tenant
        if not service.responses.delete(tenant, id):
            raise _not_found(id)
        service.conversations.delete(tenant, id)
        body = {"id": id, "object": "response", "deleted": True}
        return Response(msgspec.json.encode(body), media_type="application/json")


def _not_found(id: str) -> Refusal:
    return Refusal(
        HTTPStatus.NOT_FOUND,
        f"There is no response `{id[:80]}`: it was not stored, was forgotten, or belongs to another key.",
        param="response_id",
    )


class ResponsesManner(Manner):
    """The Responses API: what a tenant stored, and what a request can be compared with."""

    dialect: OpenAIResponses
    prewarmed = Answer("", FinishReason.STOP)

    def __init__(self, service: Service) -> None:
        super().__init__(OpenAIResponses(service.conversations.of("")))
        self._service = service

    def bind(self, tenant: str) -> None:
        self.dialect = OpenAIResponses(self._service.conversations.of(tenant))

    def located(self, prompt: Prompt, asked: Asked, tenant: str) -> Prompt:
        """What came with earlier responses stands in front of `input` in the body that the rulebook reads."""
        id = asked.body.get("previous_response_id")
        stored = self._service.conversations.get(tenant, id) if id else None
        if stored is None:
            return prompt
        before = len(stored.items)

        def place(path: str) -> str:
            path = _INPUT.sub(lambda match: f"input[{int(match[1]) + before}]", path)
            return path.removeprefix("previous_response.")

        return replace(prompt, segments=tuple(replace(each, path=place(each.path)) for each in prompt.segments))

    def earlier(self, asked: Asked, rules: Rulebook, tenant: str) -> ProviderPrompt | None:
        body = self.dialect.comparison(asked)
        return rules.prompt(body, scope=tenant, counter=Estimate(), api=self.dialect.api) if body else None

    def ended(self, reply: Reply, asked: Asked, tenant: str, sent: bytes) -> None:
        if asked.body.get("store") is False:
            return
        if asked.stream:  # the last event holds the whole response
            sent = msgspec.json.encode(msgspec.json.decode(sent.partition(b"data: ")[2])["response"])
        self._service.responses.put(tenant, reply.id, sent)

    def broken(self, reply: Reply, failure: Failure) -> bytes:
        assert isinstance(reply, ResponseReply)
        return reply.fail(failure.message)
