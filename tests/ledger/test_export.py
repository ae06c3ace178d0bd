"""Exports: nothing rounded, nothing made up where a price is unknown."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.ledger.bill import Bill
from kvledger.ledger.export import COLUMNS, export_format, write_csv, write_json, write_parquet
from kvledger.ledger.receipt import Receipt
from kvledger.ledger.store import LedgerRow
from tests.ledger.samples import at, receipt

NO_PRICE = Bill((), "prices", reason="no price is known")
ROWS = [
    LedgerRow(1, receipt("a", at=at("2026-11-12T09:00:00.25")), "d1"),
    LedgerRow(2, receipt("b", bill=NO_PRICE, ttft=None, miss='said "no", twice'), "d2"),
]


def test_csv():
    file = io.StringIO()
    write_csv(ROWS, file)
    first, second = csv.DictReader(io.StringIO(file.getvalue()))
    assert first["at"] == "2026-11-12T09:00:00.250000Z"
    assert first["input_usd"] == "0.000074"
    assert first["total_usd"] == "0.032164"
    assert (first["read_tokens"], first["written_tokens"], first["fresh_tokens"]) == ("21400", "6000", "37")
    assert first["breaks"] == "expired"
    assert (second["total_usd"], second["storage_usd"], second["ttft"]) == ("", "", "")
    assert second["unknown"] == "no price is known"
    assert second["miss"] == 'said "no", twice'
    assert [one["row"] for one in (first, second)] == ["1", "2"]


def test_json_is_one_array_of_whole_receipts():
    file = io.StringIO()
    write_json(ROWS, file)
    text = file.getvalue()
    assert [Receipt.decoded(json.dumps(one).encode()) for one in json.loads(text)] == [row.receipt for row in ROWS]
    assert len(text.splitlines()) == 4
    empty = io.StringIO()
    write_json([], empty)
    assert json.loads(empty.getvalue()) == []


def test_parquet(tmp_path: Path):
    polars = pytest.importorskip("polars")
    write_parquet(ROWS, tmp_path / "x.parquet")
    table = polars.read_parquet(tmp_path / "x.parquet")
    assert table.columns == ["row", *(column.name for column in COLUMNS), "digest"]
    assert table["total_usd"].to_list() == [Decimal("0.032164"), None]
    assert table["at"].to_list()[0] == datetime(2026, 11, 12, 9, 0, 0, 250_000, tzinfo=UTC)
    assert table["ttft"].to_list() == [1.75, None]
    write_parquet([], tmp_path / "empty.parquet")
    assert polars.read_parquet(tmp_path / "empty.parquet").schema == table.schema


def test_the_format_is_asked_for_or_in_the_name():
    assert export_format("x.csv", None) == "csv"
    assert export_format("x.parquet", None) == "parquet"
    assert export_format("x.jsonl", None) == "json"
    assert export_format("-", "csv") == "csv"
    with pytest.raises(InvalidRequestError, match=r"does not say which format.*Did you mean \.parquet"):
        export_format("x.parkuet", None)
    with pytest.raises(InvalidRequestError, match="cannot go to standard output"):
        export_format("-", "parquet")
