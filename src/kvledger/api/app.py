"""The routes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from kvledger.api.chat import create_chat_completion
from kvledger.api.errors import Refusal, answer_error, answer_unroutable
from kvledger.api.service import Service
from kvledger.errors import KvledgerError


def create_app(service: Service) -> Starlette:
    """The HTTP application for one served model."""
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", create_chat_completion, methods=["POST"]),
            Route("/v1/models", list_models),
            Route("/v1/models/{name:path}", show_model),
            Route("/health", show_health),
        ],
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


async def list_models(request: Request) -> Response:
    service: Service = request.app.state.service
    service.keys.tenant(request.headers.get("authorization"))
    return _json({"object": "list", "data": [_model(name, service) for name in service.model_names]})


async def show_model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.keys.tenant(request.headers.get("authorization"))
    name: str = request.path_params["name"]
    service.check_model(name)
    return _json(_model(name, service))


async def show_health(request: Request) -> Response:
    """Open to everybody: it tells nothing but whether new work is taken."""
    service: Service = request.app.state.service
    if service.closing:
        return _json({"status": "closing"}, HTTPStatus.SERVICE_UNAVAILABLE)
    return _json({"status": "ok"})


async def answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client is gone. 499 is what other servers log for this; nothing is sent."""
    return Response(status_code=499)


def _model(name: str, service: Service) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.started, "owned_by": "kvledger"}


def _json(value: Any, status: int = HTTPStatus.OK) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
