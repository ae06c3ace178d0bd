"""A receipt refuses to exist if a law does not hold; its encoding is canonical and loses nothing."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engine.request import FinishReason
from kvledger.ledger.account import Account, Break, BreakReason, Split
from kvledger.ledger.bill import Bill, Line, LineKind
from kvledger.ledger.receipt import FINISH_REASONS, Receipt, receipt_digest
from tests.ledger.samples import receipt, used

BROKEN = [
    ({"id": ""}, "needs the id"),
    ({"reused_tokens": 27_437}, "27437 tokens reused of a prompt of 27437"),
    ({"reused_tokens": -1}, "-1 tokens reused"),
    ({"queued": -0.1}, "queued is -0.1"),
    ({"prefill": float("nan")}, "prefill is nan"),
    ({"decode": float("inf")}, "decode is inf"),
    ({"ttft": -1.0}, "ttft is -1.0"),
    ({"kv_byte_seconds": -1.0}, "kv_byte_seconds"),
    ({"finish_reason": "done"}, "'done' is no finish reason"),
    ({"account": Account(Split(10, fresh=10))}, "the account splits"),
    ({"bill": None}, "a bill is a Bill"),
]


@pytest.mark.parametrize(("changes", "says"), BROKEN)
def test_a_broken_law_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        receipt(**changes)


def test_p22_reuse_beyond_the_prompt_is_impossible():
    """https://github.com/sgl-project/sglang/pull/11900: 122,884 cached of 59,946 prompt tokens."""
    with pytest.raises(ValueError, match="122884 tokens reused of a prompt of 59946: it can be 59945 at most"):
        receipt(usage=used(59_946, 10), reused_tokens=122_884)
    assert receipt(usage=used(59_946, 10), reused_tokens=59_945)


def test_prompt_parts_output_parts_and_money_are_checked_where_they_are_made():
    with pytest.raises(ValueError, match="is not the prompt's 100 tokens"):
        Split(100, read=50, written={"5m": 25}, fresh=24)
    with pytest.raises(ValueError, match="of it reasoning 11"):
        used(1, 10, reasoning=11)
    for amount in (0.5, Decimal("NaN"), Decimal(-1)):
        with pytest.raises(ValueError, match="no amount of money"):
            Line(LineKind.INPUT, 1, Decimal(1), amount)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a reason why there is none"):
        Line(LineKind.INPUT, 1, None, None)


@pytest.mark.parametrize("reason", sorted(FINISH_REASONS))
def test_every_way_out_has_a_receipt(reason):
    nothing = {"ttft": None, "prefill": 0.0, "decode": 0.0, "usage": used(12), "reused_tokens": 0}
    refused = {**nothing, "usage": used(), "bill": Bill((), "none", reason="the request was refused")}
    for changes in ({}, nothing, refused):
        made = receipt(finish_reason=reason, message="" if reason == "stop" else "why", **changes)
        assert Receipt.decoded(made.encoded()) == made


def test_finish_reasons_are_the_engines():
    assert {reason.value for reason in FinishReason} == FINISH_REASONS


def test_the_encoding_is_canonical():
    made = receipt(usage=used(1, 1, written={"1h": 2, "5m": 1}))
    same = receipt(usage=used(1, 1, written={"5m": 1, "1h": 2}))
    assert made.encoded() == same.encoded()
    text = made.encoded().decode()
    assert json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False) == text
    assert json.loads(text)["version"] == 1
    assert json.loads(text)["bill"]["lines"][0]["usd"] == "0.000002"
    assert "E" not in json.loads(receipt(usage=used(0, 0, read=1)).encoded())["bill"]["lines"][0]["usd"]


def test_the_digest_is_that_of_the_first_version():
    """A golden vector: if it changes, so must VERSION, or old ledgers no longer verify."""
    made = receipt(bill=Bill((Line(LineKind.INPUT, 5, Decimal(2), Decimal("0.00001")),), "prices", "A"))
    assert receipt_digest(made.encoded()) == DIGEST
    assert receipt_digest(receipt("req_2").encoded()) != DIGEST


DIGEST = "42ed89c009c06ae4abed467d90fdaad6b87cc10b4f960481a603b1d07b3da0b6"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[]", "Expected"),
        (b'{"version": 2}', "version 2"),
        (b'{"version": 1, "id": "x"}', "missing required field"),
        (b'{"version": 1, "colour": "red"}', "does not have the fields colour"),
        (b"not json", "malformed"),
    ],
)
def test_what_is_no_receipt_is_refused(data, says):
    with pytest.raises(ValueError, match=says):
        Receipt.decoded(data)


def test_a_decoded_receipt_obeys_the_laws_too():
    wire = json.loads(receipt().encoded())
    wire["reused_tokens"] = 10**9
    with pytest.raises(ValueError, match="tokens reused"):
        Receipt.decoded(json.dumps(wire).encode())


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.floats(0, 1e12)


@given(texts, texts, st.floats(0, 1e11), numbers, st.integers(0, 10**9), st.none() | numbers)
def test_encoding_and_decoding_lose_nothing(tenant, miss, at, decode, fresh, ttft) -> None:
    usage = used(fresh, 3, read=7, written={"5m": 1})
    breaks = (Break(BreakReason.TOOLS_CHANGED, 5, path=tenant, offset=3, before=miss, after="x"),)
    made = receipt(
        tenant=tenant, miss=miss, at=at, decode=decode, usage=usage, ttft=ttft, account=Account(usage.split, breaks)
    )
    again = Receipt.decoded(made.encoded())
    assert again == made
    assert again.encoded() == made.encoded()
