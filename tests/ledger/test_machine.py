"""Machine time, by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.ledger.machine import MachinePrice, machine_cost
from tests.ledger.samples import receipt, used


def test_a_request_by_hand():
    # 3.60 dollars an hour is 0.001 a second; nine tenths of it are computing.
    made = receipt(
        usage=used(1_000, 200),
        reused_tokens=800,
        prefill=2.0,
        decode=10.0,
        kv_byte_seconds=12 * 250_000_000.0,
        kv_pool_bytes=1_000_000_000,
    )
    cost = machine_cost(made, MachinePrice(Decimal("3.60")))
    assert cost.prefill == Decimal("0.0018")
    assert cost.decode == Decimal("0.009")
    assert cost.memory == Decimal("0.0003")  # 12 s of a quarter of the pool: 3 s of the memory, 0.0001 each
    assert cost.total == Decimal("0.0111")
    # 0.25 for a million tokens of memory; 0.0018 / 200 and 0.009 / 200 for one computed and one put out.
    assert cost.reused_per_million == Decimal("0.25")
    assert cost.input_per_million == Decimal("9.25")
    assert cost.output_per_million == Decimal("45.25")


def test_output_costs_more_than_input_and_reused_input_almost_nothing():
    cost = machine_cost(receipt(usage=used(2_000, 100), reused_tokens=1_500), MachinePrice.parse("2.50/hour"))
    assert cost.output_per_million is not None
    assert cost.input_per_million is not None
    assert cost.reused_per_million is not None
    assert cost.output_per_million > 5 * cost.input_per_million > 100 * cost.reused_per_million


def test_memory_of_a_pool_of_unknown_size_is_unknown():
    cost = machine_cost(receipt(kv_pool_bytes=0), MachinePrice(Decimal(1)))
    assert (cost.memory, cost.total, cost.output_per_million) == (None, None, None)
    assert machine_cost(receipt(kv_pool_bytes=0, kv_byte_seconds=0.0), MachinePrice(Decimal(1))).memory == 0


def test_a_request_that_produced_nothing():
    made = receipt(usage=used(), reused_tokens=0, prefill=0.0, decode=0.0, kv_byte_seconds=0.0)
    cost = machine_cost(made, MachinePrice(Decimal(1)))
    assert cost.total == 0
    assert (cost.input_per_million, cost.reused_per_million, cost.output_per_million) == (None, None, None)


@pytest.mark.parametrize("text", ["2.50/hour", "2.5 / h", " 2.50/hour "])
def test_a_price_is_read(text):
    assert MachinePrice.parse(text) == MachinePrice(Decimal("2.5"))


@pytest.mark.parametrize("text", ["2.50", "free", "0/hour", "-1/hour", "2.50/day", "1e3/hour"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(InvalidRequestError, match="no price of a machine"):
        MachinePrice.parse(text)
