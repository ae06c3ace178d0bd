"""The shape in which the Anthropic API reports an error."""

from __future__ import annotations

import msgspec

OVERLOADED = 529
"""The status of a server that has too much to do; 429 is a client's own limit."""

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}


class Detail(msgspec.Struct):
    type: str
    message: str


class ErrorBody(msgspec.Struct):
    """What stands in the body of a failed request, and in the event that ends a stream which broke."""

    error: Detail
    request_id: str | None = None
    type: str = "error"


def error_type(status: int) -> str:
    """Anthropic's word for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(status: int, message: str, *, request_id: str | None = None) -> bytes:
    """Encode an error. The field at fault has no place of its own in this shape: `message` names it."""
    return msgspec.json.encode(ErrorBody(Detail(error_type(status), message), request_id))
