"""Keys: shown once, found by hash, closed for good; and what a key is told about its limits."""

from __future__ import annotations

import hmac
from dataclasses import replace
from decimal import Decimal
from hashlib import sha256

import pytest
from sqlalchemy import text

from kvledger.clock import ManualClock
from kvledger.errors import InvalidRequestError
from kvledger.ledger.budget import Answer, Budgets
from kvledger.ledger.database import Database
from kvledger.ledger.keys import Key, KeyRing, KeyStore
from kvledger.ledger.store import Ledger
from tests.ledger.samples import at, receipt


@pytest.fixture
def database(where: str):
    opened = Database(where)
    yield opened
    opened.close()


def test_a_key_is_found_by_what_was_shown_once(database):
    store = KeyStore(database)
    secret = store.add("ci", 100.0, tenant="acme", budget=Decimal("50.00"), rate=60)
    key = store.ring().find(secret.encode())
    assert key == Key("ci", "acme", sha256(secret.encode()).hexdigest(), Decimal(50), 60, 100.0)
    assert store.ring().find(secret.encode() + b"x") is None
    assert store.ring().find(b"") is None
    assert KeyStore(database).all() == [key]


def test_only_the_hash_is_stored(database):
    secret = KeyStore(database).add("ci", 0.0)
    with database.read() as connection:
        row = connection.execute(text("SELECT * FROM keys")).one()
    assert secret not in str(row)
    assert len(secret) > 40
    assert KeyStore(database).add("other", 0.0) != secret


def test_the_tenant_is_the_name_unless_given(database):
    store = KeyStore(database)
    store.add("ci", 0.0)
    assert [key.tenant for key in store.all()] == ["ci"]


def test_a_revoked_key_opens_nothing_and_keeps_its_name(database):
    store = KeyStore(database)
    secret = store.add("ci", 0.0)
    store.revoke("ci", 5.0)
    assert store.ring().find(secret.encode()) is None
    assert not store.ring()
    assert [key.revoked_at for key in store.all()] == [5.0]
    with pytest.raises(InvalidRequestError, match="There is a key ci already"):
        store.add("ci", 6.0)
    with pytest.raises(InvalidRequestError, match="no valid key ci"):
        store.revoke("ci", 7.0)


@pytest.mark.parametrize(
    ("name", "limits", "says"),
    [
        ("", {}, "cannot name a key"),
        ("a b", {}, "cannot name a key"),
        ("x" * 65, {}, "cannot name a key"),
        ("a", {"budget": Decimal(0)}, "A budget of 0"),
        ("a", {"budget": Decimal("NaN")}, "A budget of NaN"),
        ("a", {"rate": 0}, "A rate of 0"),
    ],
)
def test_impossible_keys_are_refused(tmp_path, name, limits, says):
    store = KeyStore(Database(tmp_path / "keys.db"))
    with pytest.raises(InvalidRequestError, match=says):
        store.add(name, 0.0, **limits)
    assert store.all() == []


def test_every_key_is_compared_in_constant_time(monkeypatch):
    compared = []
    real = hmac.compare_digest

    def spy(left, right):
        compared.append(left)
        return real(left, right)

    monkeypatch.setattr("kvledger.ledger.keys.hmac.compare_digest", spy)
    digests = [sha256(bytes([i])).hexdigest() for i in range(4)]
    ring = KeyRing(Key(str(i), "t", digest, None, None, 0.0) for i, digest in enumerate(digests))
    for presented in (b"\x00", b"\x03", b"none"):
        ring.find(presented)
    assert compared == digests * 3


KEY = Key("ci", "acme", "", None, None, 0.0)


def nothing_spent(name: str, since: float) -> Decimal:
    return Decimal(0)


def test_a_rate_counts_any_sixty_seconds():
    clock = ManualClock(1000.0)
    budgets = Budgets(clock, nothing_spent)
    key = replace(KEY, rate=3)
    answers = []
    for _ in range(4):
        answers.append(budgets.ask(key))
        clock.advance(10)
    assert [bool(answer) for answer in answers] == [True, True, True, False]
    assert answers[3].answer is Answer.OVER_RATE
    assert answers[3].retry_after == 30.0  # the first was at 1,000, this at 1,030
    assert "3 requests per minute: wait 30.0 seconds" in answers[3].message
    clock.advance(19.9)  # 1,059.9
    assert not budgets.ask(key)
    clock.advance(0.2)  # the refused ones do not count
    assert budgets.ask(key)
    assert not budgets.ask(key)


def test_a_key_without_limits_is_always_allowed():
    budgets = Budgets(ManualClock(), nothing_spent)
    assert all(budgets.ask(KEY) for _ in range(1000))


def test_a_budget_is_of_a_calendar_month():
    clock = ManualClock(at("2026-11-30T23:00"))
    asked: list[tuple[str, float]] = []

    def spent(name: str, since: float) -> Decimal:
        asked.append((name, since))
        return Decimal("9.50") if since == at("2026-11-01") else Decimal(0)

    budgets = Budgets(clock, spent)
    key = replace(KEY, budget=Decimal(10))
    assert budgets.ask(key)
    budgets.charge(key, Decimal("0.49"), clock.now())
    assert budgets.ask(key)
    budgets.charge(key, None, clock.now())  # a price that is not known
    budgets.charge(key, Decimal("0.01"), clock.now())
    refused = budgets.ask(key)
    assert refused.answer is Answer.OVER_BUDGET
    assert refused.retry_after == 3600.0
    assert "has spent 10 of its 10 dollars" in refused.message
    clock.advance(3600)
    assert budgets.ask(key)
    budgets.charge(key, Decimal(99), at("2026-11-30T23:59"))  # it began in November
    assert budgets.ask(key)
    assert asked == [("ci", at("2026-11-01")), ("ci", at("2026-12-01"))]


def test_december_is_followed_by_january():
    budgets = Budgets(ManualClock(at("2026-12-31T23:59")), lambda name, since: Decimal(10))
    assert budgets.ask(replace(KEY, budget=Decimal(10))).retry_after == 60.0


def test_a_budget_starts_from_the_ledger(where):
    ledger = Ledger(where)
    ledger.append([receipt(f"r{i}", at=at("2026-11-12")) for i in range(3)])  # 3 x 0.032164 = 0.096492
    clock = ManualClock(at("2026-11-13"))
    assert not Budgets(clock, ledger.spent).ask(replace(KEY, budget=Decimal("0.096492")))
    assert Budgets(clock, ledger.spent).ask(replace(KEY, budget=Decimal("0.096493")))
    ledger.close()
