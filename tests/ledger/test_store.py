"""The ledger on SQLite and on a real PostgreSQL server: appended once, chained, and every fault found."""

from __future__ import annotations

import threading
from decimal import Decimal

import pytest
from sqlalchemy import create_engine, text

from kvledger.errors import LedgerConflictError, LedgerError
from kvledger.ledger.store import GENESIS, Filter, Ledger, row_digest
from tests.ledger.samples import at, receipt, used


def change(where: str, *statements: str) -> None:
    """What somebody with the database in hand does to it."""
    url = where.replace("postgresql:", "postgresql+psycopg:") if "://" in where else f"sqlite:///{where}"
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


@pytest.fixture
def ledger(where: str):
    opened = Ledger(where)
    yield opened
    opened.close()


def test_receipts_come_back_in_order(ledger):
    made = [receipt(f"req_{i}") for i in range(5)]
    ledger.append(made[:2])
    ledger.append(made[2:])
    rows = list(ledger.rows())
    assert [row.receipt for row in rows] == made
    assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
    assert [row.seq for row in ledger.rows(last=2)] == [4, 5]


def test_each_row_is_chained_to_the_one_before(ledger):
    made = [receipt(f"req_{i}") for i in range(3)]
    ledger.append(made)
    digest = GENESIS
    for row, one in zip(ledger.rows(), made, strict=True):
        digest = row_digest(digest, one.encoded().decode())
        assert row.digest == digest
    verified = ledger.verify()
    assert (verified.rows, verified.digest, verified.faults) == (3, digest, ())


def test_an_empty_ledger_is_whole(ledger):
    assert ledger.verify().faults == ()
    ledger.append([])
    assert (ledger.verify().rows, ledger.verify().digest) == (0, GENESIS)


def test_repeating_an_append_adds_nothing_and_a_contradiction_is_refused(ledger):
    ledger.append([receipt("a"), receipt("b")])
    ledger.append([receipt("b"), receipt("c"), receipt("c")])
    assert [row.receipt.id for row in ledger.rows()] == ["a", "b", "c"]
    with pytest.raises(LedgerConflictError, match="another receipt of request b"):
        ledger.append([receipt("d"), receipt("b", decode=9.0)])
    with pytest.raises(LedgerConflictError, match="two different receipts of request e"):
        ledger.append([receipt("e"), receipt("e", decode=9.0)])
    assert [row.receipt.id for row in ledger.rows()] == ["a", "b", "c"]  # all or none
    assert ledger.verify().faults == ()


def test_filters(ledger):
    ledger.append(
        [
            receipt("a", at=at("2026-11-01"), tenant="x"),
            receipt("b", at=at("2026-11-02"), tenant="y"),
            receipt("c", at=at("2026-11-03"), tenant="x", model="claude-opus-5"),
        ]
    )

    def found(**conditions):
        return "".join(row.receipt.id for row in ledger.rows(Filter(**conditions)))

    assert found(tenant="x") == "ac"
    assert found(model="claude-opus-5") == "c"
    assert found(since=at("2026-11-02")) == "bc"
    assert found(until=at("2026-11-02")) == "a"
    assert found(since=at("2026-11-02"), tenant="x", model="claude-sonnet-5-5") == ""


def test_what_a_key_spent(ledger):
    unknown = receipt("d").bill.__class__((), "none", reason="no price")
    ledger.append(
        [
            receipt("a", at=at("2026-10-31T23:59"), key="k"),
            receipt("b", at=at("2026-11-01"), key="k"),
            receipt("c", at=at("2026-11-09"), key="k"),
            receipt("d", at=at("2026-11-09"), key="k", bill=unknown),
            receipt("e", at=at("2026-11-09"), key="other"),
        ]
    )
    assert ledger.spent("k", at("2026-11-01")) == 2 * Decimal("0.032164")
    assert ledger.spent("nobody", 0) == 0


SWAP = (
    "UPDATE receipts SET seq = -3 WHERE seq = 3",
    "UPDATE receipts SET seq = 3 WHERE seq = 4",
    "UPDATE receipts SET seq = 4 WHERE seq = -3",
)
TAMPERED = [
    (["UPDATE receipts SET receipt = replace(receipt, '820', '821') WHERE seq = 3"], [("altered", 3)]),
    (["UPDATE receipts SET tenant = 'mallory' WHERE seq = 3"], [("altered", 3)]),
    (["UPDATE receipts SET usd = '0' WHERE seq = 5"], [("altered", 5)]),
    (["UPDATE receipts SET at = at + 1 WHERE seq = 1"], [("altered", 1)]),
    (["UPDATE receipts SET digest = previous WHERE seq = 2"], [("altered", 2)]),
    (["UPDATE receipts SET receipt = '{}' WHERE seq = 2"], [("altered", 2)]),
    (["DELETE FROM receipts WHERE seq = 1"], [("missing", 1)]),
    (["DELETE FROM receipts WHERE seq IN (2, 3)"], [("missing", 2)]),
    (["DELETE FROM receipts WHERE seq = 5"], [("missing", 5)]),
    (["DELETE FROM receipts"], [("missing", 1)]),
    (["DELETE FROM head"], [("missing", 5)]),
    (["UPDATE head SET rows = 4"], [("altered", 5)]),
    (
        [
            "DELETE FROM receipts WHERE seq = 3",
            "UPDATE receipts SET seq = 3 WHERE seq = 4",
            "UPDATE receipts SET seq = 4 WHERE seq = 5",
        ],
        [("altered", 2), ("missing", 5)],
    ),
    (list(SWAP), [("reordered", 3), ("reordered", 4), ("reordered", 5)]),
]


@pytest.mark.parametrize(("statements", "expected"), TAMPERED, ids=lambda value: str(value[0])[:60])
def test_every_fault_is_found_and_named(ledger, where, statements, expected):
    ledger.append([receipt(f"req_{i}") for i in range(5)])
    change(where, *statements)
    faults = ledger.verify().faults
    assert [(fault.kind, fault.seq) for fault in faults] == expected, faults
    assert all(str(fault.seq) in fault.detail or "end" in fault.detail for fault in faults)


def test_a_row_replaced_with_one_that_fits_itself_is_found_by_the_next(ledger, where):
    ledger.append([receipt(f"req_{i}") for i in range(4)])
    rows = list(ledger.rows())
    forged = receipt("req_1", decode=0.5).encoded().decode()
    digest = row_digest(rows[0].digest, forged)
    change(where, f"UPDATE receipts SET receipt = '{forged}', digest = '{digest}' WHERE seq = 2".replace(":", "\\:"))
    (fault,) = ledger.verify().faults
    assert (fault.kind, fault.seq) == ("altered", 2)
    assert "row 3 does not continue row 2" in fault.detail


def test_several_writers_keep_one_chain(where):
    """As several servers on one ledger: each with its own connections."""
    Ledger(where).close()
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            mine = Ledger(where)
            for batch in range(10):
                mine.append([receipt(f"req_{number}_{batch}_{i}") for i in range(5)])
            mine.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    ledger = Ledger(where)
    verified = ledger.verify()
    assert (verified.rows, verified.faults) == (200, ())
    # One writer's receipts are in its own order, whatever came in between.
    mine = [row.receipt.id for row in ledger.rows() if row.receipt.id.startswith("req_2_")]
    assert mine == [f"req_2_{batch}_{i}" for batch in range(10) for i in range(5)]
    ledger.close()


def test_a_reader_sees_one_moment_while_others_write(ledger, where):
    ledger.append([receipt(f"req_{i}") for i in range(3)])
    rows = ledger.rows()
    first = next(rows)
    other = Ledger(where)
    other.append([receipt("later")])
    assert [first.seq, *(row.seq for row in rows)] == [1, 2, 3]
    assert other.verify().rows == 4
    other.close()


def test_it_is_all_there_when_opened_again(where):
    ledger = Ledger(where)
    ledger.append([receipt("a", tenant="Zoë \N{SNOWMAN}", usage=used(10, 3))])
    ledger.close()
    again = Ledger(where, create=False)
    assert [row.receipt.tenant for row in again.rows()] == ["Zoë \N{SNOWMAN}"]
    assert again.verify().faults == ()
    again.close()


def test_a_ledger_of_another_version_is_not_written_to(ledger, where):
    change(where, "UPDATE head SET version = 2")
    with pytest.raises(LedgerError, match="version 2"):
        ledger.append([receipt()])


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("mysql://host/db", "cannot live in mysql"),
        ("sqlite://", "in memory would be lost"),
        ("nonsense://x", "cannot live in nonsense"),
        ("://", "no address of a ledger"),
        ("postgresql://nobody@/none?host=/nowhere", "cannot be used"),
    ],
)
def test_an_address_that_cannot_be_used_gets_a_sentence(address, says):
    with pytest.raises(LedgerError, match=says):
        Ledger(address)


def test_looking_at_a_ledger_does_not_make_one(tmp_path):
    with pytest.raises(LedgerError, match="There is no ledger at"):
        Ledger(tmp_path / "none.db", create=False)
    assert not list(tmp_path.iterdir())
    (tmp_path / "text.db").write_text("this is no database, and long enough to show it" * 10)
    with pytest.raises(LedgerError, match="cannot be used: file is not a database"):
        list(Ledger(tmp_path / "text.db", create=False).rows())


def test_a_password_is_not_shown():
    with pytest.raises(LedgerError) as error:
        Ledger("postgresql://me:secret@/none?host=/nowhere")
    assert "secret" not in str(error.value)
