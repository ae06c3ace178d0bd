"""`/v1/models` and `/v1beta/models`: the names served, in the caller's own shape."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvledger.api.exchange import admit
from kvledger.api.service import Service
from kvledger.api.shapes import shape_of


async def list_models(request: Request) -> Response:
    service: Service = request.app.state.service
    dialect = shape_of(request)
    admit(request, dialect)
    shown = [_SHAPES[dialect.provider](name, service) for name in service.names.listed]
    return _json(_LISTS[dialect.provider](shown))


async def show_model(request: Request) -> Response:
    service: Service = request.app.state.service
    dialect = shape_of(request)
    admit(request, dialect)
    name = service.names.show(str(request.path_params["name"]).removeprefix("models/"))
    return _json(_SHAPES[dialect.provider](name, service))


def _openai(name: str, service: Service) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.started, "owned_by": "kvledger"}


def _anthropic(name: str, service: Service) -> dict[str, Any]:
    created = datetime.fromtimestamp(service.started, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": name, "display_name": name, "created_at": created}


def _gemini(name: str, service: Service) -> dict[str, Any]:
    actions = ["generateContent", "countTokens", "createCachedContent"]
    return {"name": f"models/{name}", "displayName": name, "version": "1", "supportedGenerationMethods": actions}


def _anthropic_page(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"data": models, "has_more": False, "first_id": models[0]["id"], "last_id": models[-1]["id"]}


def _openai_page(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": models}


def _gemini_page(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"models": models}


_SHAPES = {"openai": _openai, "anthropic": _anthropic, "gemini": _gemini}
_LISTS = {"openai": _openai_page, "anthropic": _anthropic_page, "gemini": _gemini_page}


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
