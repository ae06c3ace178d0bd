"""Checks that both of OpenAI's APIs make of a body."""

from __future__ import annotations

from typing import TypeVar

from kvledger.errors import InvalidRequestError

Number = TypeVar("Number", int, float)

INT64 = 2**63


def unsupported(param: str, what: str, instead: str) -> InvalidRequestError:
    """The error for something OpenAI knows and this server does not: what, and what to do `instead`."""
    return InvalidRequestError(f"{what} not supported by this server: {instead}.", param=param)


def within(name: str, value: Number | None, low: float, high: float, default: Number) -> Number:
    """`value`, or `default` for None; raises `InvalidRequestError` naming the field if it is out of range."""
    if value is None:
        return default
    if low <= value <= high:
        return value
    if high == INT64 - 1:
        raise InvalidRequestError(f"`{name}` must be at least {low} and fit 64 bits, not {value}.", param=name)
    raise InvalidRequestError(f"`{name}` must be between {low} and {high}, not {value}.", param=name)
