"""The routes."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kvledger.api.anthropic import count_message_tokens, create_message
from kvledger.api.auth import Keys, check_host
from kvledger.api.cache import Cache, list_events, verify_cache
from kvledger.api.errors import Refusal, answer_error, answer_unroutable
from kvledger.api.gemini import CachedContentList, OneCachedContent, act_on_model
from kvledger.api.log import Recorder
from kvledger.api.metrics import show_metrics
from kvledger.api.models import list_models, show_model
from kvledger.api.openai import StoredResponse, create_chat_completion, create_response
from kvledger.api.service import Service
from kvledger.errors import KvledgerError


def create_app(service: Service, further: Sequence[Route] = ()) -> Starlette:
    """The HTTP application for one served model, with `further` routes."""
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/v1/responses", create_response, methods=["POST"]),
            Route("/v1/responses/{id}", StoredResponse),
            Route("/v1/messages", create_message, methods=["POST"]),
            Route("/v1/messages/count_tokens", count_message_tokens, methods=["POST"]),
            *(
                route
                for version in ("v1", "v1beta")  # Google's SDK says either
                for route in (
                    Route(f"/{version}/models", list_models),
                    Route(f"/{version}/models/{{name:path}}", act_on_model, methods=["POST"]),
                    Route(f"/{version}/models/{{name:path}}", show_model),
                    Route(f"/{version}/cachedContents", CachedContentList),
                    Route(f"/{version}/cachedContents/{{id}}", OneCachedContent),
                )
            ),
            Route("/v1/cache", Cache),
            Route("/v1/cache/events", list_events),
            Route("/v1/cache/verify", verify_cache),
            Route("/metrics", show_metrics),
            Route("/health", show_health),
            *further,
        ],
        middleware=[Middleware(Recorder, service.clock, service.metrics), Middleware(HostGuard, service.keys)],
        exception_handlers={
            HTTPException: answer_unroutable,
            KvledgerError: answer_error,
            Refusal: answer_error,
            ClientDisconnect: answer_nobody,
            Exception: answer_error,
        },
    )
    app.state.service = service
    return app


class HostGuard:
    """Turns away, before any route, what `check_host` refuses. `/health` stays open: probes use any name."""

    def __init__(self, app: ASGIApp, keys: Keys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["path"] != "/health":
            request = Request(scope)
            try:
                check_host(self._keys, request)
            except Refusal as refusal:
                app = answer_error(request, refusal)
        await app(scope, receive, send)


async def show_health(request: Request) -> Response:
    """Open to everybody: it tells nothing but whether new work is taken."""
    service: Service = request.app.state.service
    if service.closing:
        return _json({"status": "closing"}, HTTPStatus.SERVICE_UNAVAILABLE)
    return _json({"status": "ok"})


async def answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client is gone. 499 is what other servers log for this; nothing is sent."""
    return Response(status_code=499)


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
