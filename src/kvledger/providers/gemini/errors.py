"""The shape in which Google's APIs report an error."""

from __future__ import annotations

from typing import Any

import msgspec

STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "RESOURCE_EXHAUSTED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Google's word for an HTTP status; INVALID_ARGUMENT and INTERNAL for the others below and from 500 on."""


def error_body(status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Encode an error. The field at fault goes into the details as Google's `BadRequest`, `code` as its `ErrorInfo`."""
    word = STATUS.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    error: dict[str, Any] = {"code": status, "message": message, "status": word}
    details = []
    if param is not None:
        violation = {"field": param, "description": message}
        details.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": [violation]})
    if code is not None:
        reason = {"reason": code.upper(), "domain": "kvledger"}
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", **reason})
    if details:
        error["details"] = details
    return msgspec.json.encode({"error": error})
