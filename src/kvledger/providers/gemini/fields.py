"""The two spellings of Google's JSON: `systemInstruction` and `system_instruction` are one field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvledger.errors import InvalidRequestError
from kvledger.providers.decode import check_depth, decode

FREE = frozenset(
    ("args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "labels")
)
"""Fields whose content is the caller's own: their keys are left as they are."""

_BODY = msgspec.json.Decoder(dict[str, Any])
_SNAKE = re.compile(r"_([a-z0-9])")


def decode_body(raw: bytes) -> dict[str, Any]:
    """A request body in camel case; raises `InvalidRequestError` where it is no JSON object, or too deep."""
    body = decode(_BODY, raw)
    for name, value in body.items():
        check_depth(value, name)
    return camel_case(body)


def camel_case(body: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """`body` with every field of Google's in camel case; raises where one is given in both spellings."""
    found: dict[str, Any] = {}
    for name, value in body.items():
        camel = _SNAKE.sub(lambda match: match[1].upper(), name)
        where = f"{path}.{camel}" if path else camel
        if camel in found:
            raise InvalidRequestError(f"`{where}` is given twice, in both spellings: leave one out.", param=where)
        found[camel] = value if camel in FREE else _inner(value, where)
    return found


def objects(value: Any, path: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each object of a list with its path. Nothing for a missing list; one object may stand for a list of one."""
    if value is None:
        return
    if isinstance(value, Mapping):
        yield value, f"{path}[0]"
        return
    if not isinstance(value, list):
        raise InvalidRequestError(f"`{path}` must be an array.", param=path)
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise InvalidRequestError(f"`{path}[{index}]` must be an object.", param=f"{path}[{index}]")
        yield item, f"{path}[{index}]"


def _inner(value: Any, path: str) -> Any:
    if isinstance(value, Mapping):
        return camel_case(value, path)
    if isinstance(value, list):
        return [_inner(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return value
