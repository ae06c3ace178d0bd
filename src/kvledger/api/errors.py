"""Whatever goes wrong while serving -> status, headers and body in OpenAI's error shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kvledger.errors import (
    InvalidRequestError,
    KvledgerError,
    OverloadedError,
    PromptTooLongError,
    ShuttingDownError,
    TemplateError,
)
from kvledger.providers.openai.errors import error_body


class GenerationFailedError(KvledgerError):
    """The engine gave up on a request that it had accepted; nothing the client could have done better."""


class Refusal(Exception):
    """A request that is turned away before anything about its chat is known."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Failure:
    """An error as HTTP sees it; `body` is also what a broken stream ends with."""

    status: HTTPStatus
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        return Response(self.body, self.status, dict(self.headers), media_type="application/json")


def describe(error: Exception) -> Failure:
    """The one place that decides what an error looks like from outside. An unknown one gives away nothing."""
    status, kind, param, code = HTTPStatus.BAD_REQUEST, "invalid_request_error", None, None
    message, headers = str(error), {}
    match error:
        case Refusal():
            status, param, code, headers = error.status, error.param, error.code, error.headers
        case HTTPException():
            status, message, headers = HTTPStatus(error.status_code), error.detail, dict(error.headers or {})
        case InvalidRequestError():
            param = error.param
            code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
        case TemplateError():
            param = "messages"
        case OverloadedError():
            status, kind, code = HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error", "rate_limit_exceeded"
            headers = {"retry-after": str(math.ceil(error.retry_after))}
        case ShuttingDownError():
            status, kind, code = HTTPStatus.SERVICE_UNAVAILABLE, "server_error", "shutting_down"
        case KvledgerError():
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "server_error"
        case _:
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "server_error"
            message = "The server failed on this request; its log says why."
    return Failure(status, error_body(message, kind, param=param, code=code), headers)


def answer_error(_request: Request, error: Exception) -> Response:
    """Exception handler for every error that has no better one."""
    return describe(error).response()


def answer_unroutable(request: Request, error: Exception) -> Response:
    """Exception handler for what the router itself refuses: no such path, or no such method there."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{asked} is not possible: use {allowed}."
    elif error.status_code == HTTPStatus.NOT_FOUND:
        detail = (
            f"There is no {asked}: this server knows POST /v1/chat/completions, GET /v1/models,"
            " GET /v1/models/{id} and GET /health."
        )
    else:
        detail = error.detail
    return describe(HTTPException(error.status_code, detail, error.headers)).response()
