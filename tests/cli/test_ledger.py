"""`kvledger ledger` on a real file."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import InvalidRequestError, LedgerError
from kvledger.ledger.receipt import Receipt
from kvledger.ledger.store import Ledger
from tests.ledger.samples import at, receipt


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "ledger.db"
    ledger = Ledger(file)
    ledger.append(
        [receipt(f"r{day}", at=at(f"2026-11-0{day}"), tenant="acme" if day % 2 else "zeta") for day in (1, 2, 3)]
    )
    ledger.close()
    return str(file)


def run(*arguments: str):
    return CliRunner().invoke(app, ["ledger", *arguments])


def test_verify_says_that_all_is_whole_or_what_is_not(path):
    result = run("verify", "--ledger", path)
    assert result.exit_code == 0
    assert result.output.startswith("3 rows, all whole and in order; the last has the digest ")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE receipts SET usd = '0' WHERE seq = 2")
    result = run("verify", "--ledger", path)
    assert result.exit_code == 1
    assert result.output == "row 2 was altered: its usd is not the receipt's\n"


def test_show(path):
    lines = run("show", "--ledger", path, "--tenant", "acme").output.splitlines()
    assert [line.split()[0] for line in lines] == ["row", "1", "3"]
    assert "0.032164" in lines[1]
    assert "2026-11-01 00:00:00" in lines[1]
    assert len(run("show", "--ledger", path, "--last", "1").output.splitlines()) == 2
    shown = run("show", "--ledger", path, "--since", "2026-11-02", "--until", "2026-11-03", "--json").output
    assert Receipt.decoded(shown.encode()).id == "r2"


def test_show_prices_machine_time(path):
    lines = run("show", "--ledger", path, "--machine-price", "3.60/hour").output.splitlines()
    assert "machine $" in lines[0]
    # (1.5 + 4) s x 0.0009, and 2,000,000 / 1,000,000,000 s of the pool x 0.0001
    assert "0.00495" in lines[1].split()
    with pytest.raises(InvalidRequestError, match="no price of a machine"):
        CliRunner().invoke(
            app, ["ledger", "show", "--ledger", path, "--machine-price", "cheap"], catch_exceptions=False
        )


def test_export(path, tmp_path):
    printed = run("export", "-", "--format", "csv", "--ledger", path, "--model", "claude-sonnet-5-5").output
    assert [row["id"] for row in csv.DictReader(io.StringIO(printed))] == ["r1", "r2", "r3"]
    assert run("export", str(tmp_path / "x.json"), "--ledger", path, "--tenant", "zeta").exit_code == 0
    assert [one["id"] for one in json.loads((tmp_path / "x.json").read_text())] == ["r2"]
    assert run("export", str(tmp_path / "x.parquet"), "--ledger", path).exit_code == 0
    assert (tmp_path / "x.parquet").stat().st_size > 0


def test_a_ledger_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("KVLEDGER_HOME", str(tmp_path))
    result = run("verify")
    assert isinstance(result.exception, LedgerError)
    assert f"There is no ledger at {tmp_path}/ledger.db" in str(result.exception)
