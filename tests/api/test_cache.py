"""`/v1/cache`: what is shown, cleared, told and checked, and to whom."""

from __future__ import annotations

import httpx
import pytest

from tests.api.conftest import eventually
from tests.api.scripted import CONTEXT

LONG = "the quick brown fox jumps over the lazy dog; " * 2


def get(served, path: str = "/v1/cache", *, key: str = "", method: str = "GET", **headers: str) -> httpx.Response:
    if key:
        headers["authorization"] = f"Bearer {key}"
    with served.client() as client:
        return client.request(method, path, headers=headers)


def tenant(served, key: str) -> str:
    return served.service.keys.tenant(f"Bearer {key}")


@pytest.fixture
def shared(start):
    """Two tenants and an operator; both tenants have something cached."""
    served = start(keys=("one", "two"), operators=("boss",))
    served.engine.remember(tenant(served, "one"), LONG)
    served.engine.remember(tenant(served, "two"), "ours alone")
    return served


class TestShow:
    def test_a_tree_with_sizes_hits_and_text(self, served):
        served.engine.remember("", "a" * 32 + "b" * 20)
        served.engine.remember("", "a" * 32 + "c" * 3)
        body = get(served).json()
        first, *rest = body["prefixes"]
        assert first == {
            "tenant": "",
            "depth": 0,
            "position": 0,
            "tokens": 32,
            "blocks": 2,
            "bytes": 2000,
            "hits": 1,
            "age_s": 0.0,
            "idle_s": 0.0,
            "expires_s": 300.0,
            "pinned_blocks": 0,
            "text": "a" * 32,
        }
        assert [(each["depth"], each["position"], each["text"]) for each in rest] == [
            (1, 32, "b" * 20),
            (1, 32, "c" * 3),
        ]
        ram = body["tiers"]["ram"]
        assert ram["bytes"] == 5000
        assert sum(ram["blocks"].values()) == 64

    def test_a_tenant_sees_itself_and_nothing_of_the_whole(self, shared):
        body = get(shared, key="two").json()
        assert [each["text"] for each in body["prefixes"]] == ["ours alone"]
        assert set(body) == {"object", "prefixes"}

    def test_an_operator_sees_everybody(self, shared):
        body = get(shared, key="boss").json()
        assert {each["tenant"] for each in body["prefixes"]} == {tenant(shared, key)[:12] for key in ("one", "two")}
        assert "tiers" in body

    def test_a_key_is_needed_where_there_are_keys(self, shared):
        for path in ("/v1/cache", "/v1/cache/events", "/v1/cache/verify", "/metrics"):
            assert get(shared, path).status_code == 401
            assert get(shared, path, key="three").status_code == 401


class TestClear:
    def test_a_tenant_clears_itself_only(self, shared):
        told = get(shared, key="one", method="DELETE").json()
        assert told == {"object": "cache.cleared", "tenant": tenant(shared, "one")[:12]}
        assert get(shared, key="one").json()["prefixes"] == []
        assert len(get(shared, key="two").json()["prefixes"]) == 1

    def test_an_operator_clears_everything(self, shared):
        assert get(shared, key="boss", method="DELETE").json() == {"object": "cache.cleared", "tenant": None}
        assert get(shared, key="boss").json()["prefixes"] == []
        assert get(shared, "/v1/cache/events?since=0", key="boss").json()["events"][-1]["kind"] == "cleared"

    def test_another_method_is_told_which_ones_there_are(self, served):
        response = get(served, method="PUT")
        assert response.status_code == 405
        assert {"GET", "DELETE"} <= set(response.headers["allow"].split(", "))


class TestEvents:
    def test_replay_and_snapshot_lead_to_the_same_blocks(self, served):
        for text in ("a" * 40, "a" * 16 + "b" * 30, "c" * 5):
            served.engine.remember("", text)
        replay = get(served, "/v1/cache/events?since=0").json()
        assert [event["number"] for event in replay["events"]] == list(range(1, replay["last"] + 1))
        resident: set[str] = set()
        for event in replay["events"]:
            if event["kind"] == "stored":
                resident |= set(event["blocks"])
            else:
                resident -= set(event["blocks"])
        snapshot = get(served, "/v1/cache/events").json()
        assert (replay["snapshot"], snapshot["snapshot"]) == (False, True)
        assert snapshot["last"] == replay["last"]
        assert {block for event in snapshot["events"] for block in event["blocks"]} == resident
        assert len(resident) == 3

    def test_nothing_new_is_an_empty_list(self, served):
        served.engine.remember("", LONG)
        last = get(served, "/v1/cache/events").json()["last"]
        assert get(served, f"/v1/cache/events?since={last}").json()["events"] == []

    def test_too_far_back_or_ahead_is_410(self, served):
        response = get(served, "/v1/cache/events?since=1")
        assert response.status_code == 410
        assert response.json()["error"]["code"] == "events_gone"

    @pytest.mark.parametrize("since", ["", "-1", "x", "1.5", "9" * 30])
    def test_what_is_no_number(self, served, since):
        response = get(served, f"/v1/cache/events?since={since}")
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "since"

    @pytest.mark.parametrize("path", ["/v1/cache/events", "/v1/cache/verify", "/metrics"])
    def test_what_is_about_everybody_is_for_operators(self, shared, path):
        assert get(shared, path, key="boss").status_code == 200
        response = get(shared, path, key="one")
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "operator_only"


class TestVerify:
    def test_a_sound_cache(self, served):
        served.engine.remember("", LONG)
        assert get(served, "/v1/cache/verify").json() == {"object": "cache.verified", "files": 0, "problems": []}

    def test_a_broken_count_is_named(self, served):
        served.engine.remember("", LONG)
        served.engine.cache.pool.idle += 1
        problems = get(served, "/v1/cache/verify").json()["problems"]
        assert any("free + owned + ready + idle is 65, not 64" in problem for problem in problems)
        served.engine.cache.pool.idle -= 1


class TestNamesOfTheServer:
    """DNS rebinding: a web page makes its own name lead to the reader's machine, and reads what is there."""

    @pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:80", "10.0.0.7", "x.localhost:1"])
    def test_those_that_no_page_can_choose(self, served, host):
        assert get(served, host=host).status_code == 200

    @pytest.mark.parametrize("path", ["/v1/cache", "/v1/cache/events", "/metrics"])
    def test_others_are_refused_without_keys(self, served, path):
        response = get(served, path, host="evil.example:8000")
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "host_not_allowed"

    def test_with_keys_the_name_does_not_matter(self, shared):
        assert get(shared, key="boss", host="kvledger.example").status_code == 200


def test_a_prompt_of_thousands_of_tokens_is_an_excerpt(served):
    served.engine.remember("", "x" * 1000)
    (prefix,) = get(served).json()["prefixes"]
    assert (prefix["tokens"], prefix["text"]) == (1000, "x" * 48)
    assert prefix["tokens"] < CONTEXT
    assert eventually(lambda: served.engine.num_running == 0)
