"""JSON bodies -> typed values, with errors that a person can act on. Shared by every provider's wire format."""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

import msgspec

from kvledger.errors import InvalidRequestError

T = TypeVar("T")

MAX_DEPTH = 100
"""Levels of nesting allowed in free-form JSON: beyond any real tool schema, far below what overflows a stack."""

_TYPE_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")
_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`$")


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a request body; raises `InvalidRequestError` that names the offending field wherever there is one."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _mistyped(str(error)) from None
    except msgspec.DecodeError as error:
        raise _malformed(body, str(error)) from None
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply: flatten it.") from None


def convert(value: Any, type: type[T], path: str) -> T:
    """Check plain JSON, found at `path` of a body, against `type`; raises `InvalidRequestError` with the full path."""
    check_depth(value, path)
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        raise _mistyped(str(error), path) from None


def check_depth(value: Any, path: str) -> None:
    """Refuse plain JSON with more than `MAX_DEPTH` levels: a template's own JSON writer would overflow on it."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return
    raise InvalidRequestError(f"`{path}` is nested more than {MAX_DEPTH} levels deep: flatten it.", param=path)


def _mistyped(message: str, prefix: str = "") -> InvalidRequestError:
    """Turn msgspec's sentence (the only form in which it gives the path) into ours."""
    at = _PATH.search(message)
    path = ".".join(filter(None, (prefix, at["path"] if at else ""))).replace("[...]", "").replace(".[", "[")
    where = f"`{path}`" if path else "The request body"
    if missing := _MISSING.search(message):
        param = f"{path}.{missing['field']}" if path else missing["field"]
        return InvalidRequestError(f"`{param}` is required and missing.", param=param)
    if mismatch := _EXPECTED.search(message):
        wanted = " or ".join(_TYPE_WORDS.get(word, word) for word in mismatch["wanted"].split(" | "))
        got = mismatch["got"]
        actual = "a number with a fraction" if got == "float" else _TYPE_WORDS.get(got, got)
        return InvalidRequestError(f"{where} must be {wanted}, not {actual}.", param=path or None)
    if "out of range" in message:
        return InvalidRequestError(f"{where} is a number too large to be represented.", param=path or None)
    return InvalidRequestError(f"{where} is not valid: {message[: at.start()] if at else message}.", param=path or None)


def _malformed(body: bytes, message: str) -> InvalidRequestError:
    """Say what is wrong with JSON that the strict decoder refused.

    The standard library's decoder lets lone surrogates and `NaN` through, so it can say where they stand.
    """
    try:
        document = json.loads(body.decode())
    except UnicodeDecodeError as error:
        return InvalidRequestError(f"The request body is not valid UTF-8 (byte {error.start}).")
    except (ValueError, RecursionError):
        return InvalidRequestError(f"The request body is not valid JSON: {message}.")
    pending: list[tuple[str, Any]] = [("", document)]
    while pending:
        path, value = pending.pop()
        where = f"`{path}`" if path else "The request body"
        if isinstance(value, str) and _has_lone_surrogate(value):
            return InvalidRequestError(
                f"{where} contains half of a UTF-16 surrogate pair, which is not a character: remove it.",
                param=path or None,
            )
        if isinstance(value, float) and not math.isfinite(value):
            return InvalidRequestError(f"{where} must be a finite number.", param=path or None)
        if isinstance(value, list):
            pending += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        elif isinstance(value, dict):
            if any(map(_has_lone_surrogate, value)):
                return InvalidRequestError(f"{where} has a key with half of a UTF-16 surrogate pair: remove it.")
            pending += [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
    return InvalidRequestError(f"The request body is not valid JSON: {message}.")


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
