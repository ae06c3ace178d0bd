"""Exact decimal arithmetic for money: nothing is rounded unless a function says so."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Context, Decimal, DivisionByZero, Inexact, InvalidOperation, Overflow

MILLION = Decimal(1_000_000)

_EXACT = Context(prec=120, traps=[Inexact, InvalidOperation, DivisionByZero, Overflow])
"""A product or sum that would lose a digit raises instead."""

_FINE = Context(prec=120, rounding=ROUND_HALF_EVEN)

_STEP = Decimal("1E-12")


def times(left: Decimal | int, right: Decimal) -> Decimal:
    """The exact product."""
    return tidy(_EXACT.multiply(Decimal(left), right))


def per_million(tokens: int, rate: Decimal) -> Decimal:
    """What `tokens` cost at `rate` US dollars per million, exactly."""
    return tidy(_EXACT.divide(_EXACT.multiply(Decimal(tokens), rate), MILLION))


def quotient(amount: Decimal, divisor: Decimal | int) -> Decimal:
    """`amount / divisor` to 12 decimal places, half to even: for hours and seconds, which rarely divide exactly."""
    return tidy(_FINE.quantize(_FINE.divide(amount, Decimal(divisor)), _STEP))


def total(amounts: list[Decimal]) -> Decimal:
    """The exact sum."""
    result = Decimal(0)
    for amount in amounts:
        result = _EXACT.add(result, amount)
    return tidy(result)


def tidy(amount: Decimal) -> Decimal:
    """The same number without trailing zeros and without a positive exponent, so that equal amounts look equal."""
    return Decimal(plain(amount))


def plain(amount: Decimal) -> str:
    """Plain notation: no exponent, no trailing zeros; "0.0000005", "12", "0"."""
    return format(_EXACT.normalize(amount), "f")
