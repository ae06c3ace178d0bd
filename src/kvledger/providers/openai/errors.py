"""The shape in which the OpenAI API reports an error."""

from __future__ import annotations

import msgspec


class Detail(msgspec.Struct):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """What stands in the body of a failed request, and in the last event of a stream that broke."""

    error: Detail


def error_body(message: str, type: str, *, param: str | None = None, code: str | None = None) -> bytes:
    """Encode an error. `type` is OpenAI's class of error, such as `invalid_request_error`."""
    return msgspec.json.encode(ErrorBody(Detail(message, type, param, code)))
