from __future__ import annotations

import json
from typing import Any

import pytest

from kvledger.clock import ManualClock
from kvledger.errors import CachedContentNotFoundError, InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.gemini.caches import CachedContents, Storage, parse_draft
from kvledger.providers.gemini.rules import GeminiRules
from tests.providers.letters import NOON

CONTENTS = [{"role": "user", "parts": [{"text": "book"}]}]


def draft(**fields: Any) -> Any:
    return parse_draft(json.dumps({"model": "models/gemini-2.5-pro", "contents": CONTENTS, **fields}).encode())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def caches(clock: ManualClock) -> CachedContents:
    return CachedContents(clock, GeminiRules())


def test_storage_is_paid_from_creation_to_the_end_each_second_once(caches, clock):
    caches.create(draft(ttl="3600s"), scope="s", id="a", tokens=100_000)
    assert caches.storage() == []
    clock.advance(600)
    assert caches.storage() == [Storage("cachedContents/a", "s", "gemini-2.5-pro", 60_000_000)]
    clock.advance(10_000)  # it expired long ago
    assert [charge.token_seconds for charge in caches.storage()] == [300_000_000]
    assert caches.storage() == []


def test_an_hour_of_a_million_tokens_is_a_token_hour_million(caches, clock):
    """4.50 US$ per million tokens and hour is what the price list says for 2.5 Pro."""
    caches.create(draft(), scope="s", id="a", tokens=1_000_000)
    clock.advance(3600)
    (charge,) = caches.storage()
    usage = Usage(Split(0), storage_token_seconds=charge.token_seconds)
    assert usage.storage_token_seconds == 1_000_000 * 3600


def test_storage_ends_with_deletion_and_goes_on_when_extended(caches, clock):
    caches.create(draft(ttl="100s"), scope="s", id="a", tokens=5000)
    caches.create(draft(ttl="100s"), scope="s", id="b", tokens=5000)
    clock.advance(50)
    caches.delete("cachedContents/a", scope="s")
    caches.update("cachedContents/b", b'{"ttl": "1000s"}', scope="s")
    clock.advance(500)
    assert {charge.name[-1]: charge.token_seconds for charge in caches.storage()} == {"a": 250_000, "b": 2_750_000}


def test_fractions_of_a_token_second_are_not_lost(caches, clock):
    caches.create(draft(), scope="s", id="a", tokens=5001)
    total = 0
    for _ in range(30):
        clock.advance(1 / 3)
        total += sum(charge.token_seconds for charge in caches.storage())
    assert total in (50_009, 50_010)


def test_another_scope_cannot_tell_it_from_one_that_never_was(caches):
    caches.create(draft(), scope="s", id="a", tokens=5000)
    told = []
    for name in ("cachedContents/a", "cachedContents/z"):
        with pytest.raises(CachedContentNotFoundError) as caught:
            caches.get(name, scope="other")
        told.append(str(caught.value).replace(name, ""))
    assert told[0] == told[1]
    assert caches.list(scope="other") == ([], "")
    with pytest.raises(CachedContentNotFoundError):
        caches.delete("cachedContents/a", scope="other")
    with pytest.raises(CachedContentNotFoundError):
        caches.update("cachedContents/a", b'{"ttl": "1s"}', scope="other")


@pytest.mark.parametrize(("after", "alive"), [(3600, True), (3601, False)])
def test_an_hour_is_the_default(caches, clock, after, alive):
    caches.create(draft(), scope="s", id="a", tokens=5000)
    clock.advance(after)
    assert bool(caches.list(scope="s")[0]) == alive


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"contents": []}, "contents"),
        ({"ttl": "5m"}, "ttl"),
        ({"ttl": "0s"}, "ttl"),
        ({"ttl": "-5s"}, "ttl"),
        ({"ttl": 300}, "ttl"),
        ({"ttl": "300s", "expireTime": "2027-01-01T00:00:00Z"}, "ttl"),
        ({"expireTime": "tomorrow"}, "expireTime"),
        ({"expire_time": "2027-01-01T00:00:00"}, "expireTime"),
        ({"displayName": "x" * 129}, "displayName"),
        ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch"),
        ({"contents": [{"parts": [{"fileData": {}}]}]}, "contents[0].parts[0].fileData"),
    ],
)
def test_refused_drafts(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        draft(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "models/gemini-4-argon"}, "model"),  # implicit only
        ({"model": "models/gemini-9"}, "model"),
        ({"expireTime": "2026-11-12T12:00:00Z"}, "expireTime"),
    ],
)
def test_refused_creations(caches, fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        caches.create(draft(**fields), scope="s", id="a", tokens=50_000)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{}", "ttl"),
        (b'{"displayName": "x"}', "displayName"),
        (b'{"contents": []}', "contents"),
        (b'{"ttl": "x"}', "ttl"),
        (b'{"expireTime": "2020-01-01T00:00:00Z"}', "expireTime"),
    ],
)
def test_only_the_life_can_be_changed(caches, raw, param):
    caches.create(draft(), scope="s", id="a", tokens=5000)
    with pytest.raises(InvalidRequestError) as caught:
        caches.update("cachedContents/a", raw, scope="s")
    assert caught.value.param == param
