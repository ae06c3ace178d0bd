"""Whatever goes wrong while serving -> status, headers and body in the shape of the provider that was called."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kvledger.api.shapes import shape_of
from kvledger.errors import (
    CachedContentNotFoundError,
    InvalidRequestError,
    KvledgerError,
    OverloadedError,
    PromptTooLongError,
    ShuttingDownError,
    TemplateError,
)
from kvledger.providers.anthropic.errors import OVERLOADED
from kvledger.providers.dialect import Dialect

_CHAT = {"generate": "contents", "responses": "input"}
"""Where the chat stands in the bodies of a format, other than in `messages`."""


class GenerationFailedError(KvledgerError):
    """The engine gave up on a request that it had accepted; nothing the client could have done better."""


class Refusal(Exception):
    """A request that is turned away before it reaches the engine. `status` is an HTTP status, or one of a provider's
    own, such as 529."""

    def __init__(
        self,
        status: int,
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
    """An error as HTTP sees it."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, dialect: Dialect) -> Response:
        shown = _in_words_of(self, dialect)
        body = dialect.error(shown.status, shown.message, param=shown.param, code=shown.code)
        return Response(body, shown.status, dict(shown.headers), media_type="application/json")


def describe(error: Exception) -> Failure:
    """The one place that decides what an error looks like from outside. An unknown one gives away nothing."""
    message = str(error)
    match error:
        case Refusal():
            return Failure(error.status, message, error.param, error.code, error.headers)
        case HTTPException():
            return Failure(error.status_code, error.detail, headers=dict(error.headers or {}))
        case InvalidRequestError():
            code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
            return Failure(HTTPStatus.BAD_REQUEST, message, error.param, code)
        case TemplateError():
            return Failure(HTTPStatus.BAD_REQUEST, message, "messages")
        case CachedContentNotFoundError():
            return Failure(HTTPStatus.FORBIDDEN, message)
        case OverloadedError():
            headers = {"retry-after": str(math.ceil(error.retry_after))}
            return Failure(HTTPStatus.TOO_MANY_REQUESTS, message, code="rate_limit_exceeded", headers=headers)
        case ShuttingDownError():
            return Failure(HTTPStatus.SERVICE_UNAVAILABLE, message, code="shutting_down")
        case KvledgerError():
            return Failure(HTTPStatus.INTERNAL_SERVER_ERROR, message)
        case _:
            return Failure(HTTPStatus.INTERNAL_SERVER_ERROR, "The server failed on this request; its log says why.")


def answer_error(request: Request, error: Exception) -> Response:
    """Exception handler for every error that has no better one."""
    failure = describe(error)
    dialect = shape_of(request)
    if isinstance(error, OverloadedError) and dialect.provider == "anthropic":
        failure = replace(failure, status=OVERLOADED)
    return failure.response(dialect)


def answer_unroutable(request: Request, error: Exception) -> Response:
    """Exception handler for what the router itself refuses: no such path, or no such method there."""
    assert isinstance(error, HTTPException)
    asked = f"{request.method} {request.url.path}"
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{asked} is not possible: use {allowed}."
    elif error.status_code == HTTPStatus.NOT_FOUND:
        detail = (
            f"There is no {asked}: this server knows POST /v1/chat/completions, /v1/responses, /v1/messages,"
            " /v1/messages/count_tokens and /v1beta/models/MODEL:generateContent, and GET /v1/models and /health;"
            " docs/http.md lists the rest."
        )
    else:
        detail = error.detail
    return describe(HTTPException(error.status_code, detail, error.headers)).response(shape_of(request))


def _in_words_of(failure: Failure, dialect: Dialect) -> Failure:
    if failure.param == "messages" and dialect.api in _CHAT:
        return replace(failure, param=_CHAT[dialect.api])
    return failure
