"""What both of OpenAI's wire formats share: where the key is, and what an error looks like."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

from kvledger.providers.openai.errors import error_body

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "invalid_request_error",
    HTTPStatus.PAYMENT_REQUIRED: "insufficient_quota",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}


class OpenAIWire:
    """The part of `Dialect` that does not depend on the API."""

    provider = "openai"

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """The bearer token, or Azure's `api-key`. Header names are looked up in lower case."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token.strip():
            return token.strip()
        return headers.get("api-key") or None

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """See `Dialect.error`."""
        return error_body(message, error_type(status), param=param, code=code)


def error_type(status: int) -> str:
    """OpenAI's class of error for an HTTP status."""
    if status in _TYPES:
        return _TYPES[HTTPStatus(status)]
    return "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
