"""`kvledger keys`."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import InvalidRequestError
from kvledger.ledger.database import Database
from kvledger.ledger.keys import KeyStore


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


def run(*arguments: str):
    return CliRunner().invoke(app, ["keys", *arguments])


def test_a_key_from_its_making_to_its_end(path):
    added = run("add", "ci", "--tenant", "acme", "--budget", "50/month", "--rate", "60/min", "--ledger", path)
    assert added.exit_code == 0
    secret = added.stdout.strip()
    assert "cannot be shown again" in added.stderr
    key = KeyStore(Database(path)).ring().find(secret.encode())
    assert key is not None
    assert (key.name, key.tenant, key.budget, key.rate) == ("ci", "acme", Decimal(50), 60)

    listed = run("list", "--ledger", path).output
    assert secret not in listed
    assert listed.splitlines()[1].split()[:4] == ["ci", "acme", "50", "60"]

    assert run("revoke", "ci", "--ledger", path).output == "The key ci is revoked.\n"
    assert KeyStore(Database(path)).ring().find(secret.encode()) is None
    assert not run("list", "--ledger", path).output.splitlines()[1].rstrip().endswith("-")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "ci", "--budget", "lots"), "--budget is 'lots', which cannot be read: write it like 50/month"),
        (("add", "ci", "--rate", "60/hour"), "--rate is '60/hour'"),
        (("add", "no spaces"), "cannot name a key"),
        (("add", "ci", "--rate", "0/min"), "A rate of 0"),
    ],
)
def test_bad_input_gets_one_sentence(path, arguments, says):
    result = run(*arguments, "--ledger", path)
    assert isinstance(result.exception, InvalidRequestError)
    assert says in str(result.exception)
