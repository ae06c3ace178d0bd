"""Decimal arithmetic that loses nothing."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from kvledger.ledger.money import per_million, plain, quotient, tidy, times, total

RATES = st.decimals(min_value=0, max_value=1000, places=6)


@given(st.integers(0, 10**12), RATES)
def test_tokens_at_a_rate_are_exact(tokens: int, rate: Decimal) -> None:
    assert per_million(tokens, rate) * 1_000_000 == rate * tokens


@given(st.lists(RATES, max_size=20))
def test_a_sum_does_not_depend_on_the_order(amounts: list[Decimal]) -> None:
    assert total(amounts) == total(amounts[::-1]) == sum(amounts, Decimal(0))


@given(RATES)
def test_equal_amounts_look_equal_and_have_no_exponent(rate: Decimal) -> None:
    assert str(tidy(rate * Decimal("1.000"))) == str(tidy(rate))
    assert "E" not in plain(rate / 10**9)
    assert Decimal(plain(rate)) == rate


def test_plain_notation() -> None:
    shown = {"1E-7": "0.0000001", "1E+1": "10", "0E-9": "0", "2.500": "2.5", "100": "100"}
    assert {text: plain(Decimal(text)) for text in shown} == shown


def test_what_does_not_divide_is_rounded_to_the_twelfth_place() -> None:
    assert quotient(Decimal(1), 3600) == Decimal("0.000277777778")
    assert quotient(Decimal(9), 3600) == Decimal("0.0025")
    assert times(3, Decimal("0.1")) == Decimal("0.3")
