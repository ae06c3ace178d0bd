"""Keys that `kvledger keys` made: found where each SDK puts them, with a tenant, a budget and a rate."""

from __future__ import annotations

from decimal import Decimal
from hashlib import sha256

import pytest

from kvledger.ledger.keys import Key, KeyRing
from tests.api.test_receipts import CLAUDE, Sink

MESSAGES = [{"role": "user", "content": "hi"}]
CONTENTS = [{"parts": [{"text": "hi"}]}]
GENERATE = "/v1beta/models/gemini-2.5-flash:generateContent"


def ring(**limits) -> KeyRing:
    fields = {"budget": None, "rate": None, **limits}
    return KeyRing([Key("ci", "acme", sha256(b"kvl_secret").hexdigest(), created_at=0.0, **fields)])


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        ("/v1/chat/completions", {"authorization": "Bearer KEY"}, {"model": "gpt-5.5", "messages": MESSAGES}),
        ("/v1/responses", {"authorization": "Bearer KEY"}, {"model": "gpt-5.5", "input": "hi"}),
        ("/v1/messages", {"x-api-key": "KEY"}, {"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES}),
        (GENERATE, {"x-goog-api-key": "KEY"}, {"contents": CONTENTS}),
        (f"{GENERATE}?key=KEY", {}, {"contents": CONTENTS}),
    ],
)
def test_the_key_is_where_the_sdk_puts_it(start, path, headers, body):
    sink = Sink()
    served = start(ring=ring(), writer=sink)
    with served.client() as client:
        for key, status in (("kvl_secret", 200), ("kvl_wrong", 401), ("x", 401)):
            sent = {name: value.replace("KEY", key) for name, value in headers.items()}
            response = client.post(path.replace("KEY", key), json=body, headers=sent)
            assert response.status_code == status, response.text
            assert status == 200 or response.json()["error"]["message"].startswith("This server needs a valid API key")
        assert client.post(path.replace("KEY", ""), json=body).status_code == 401
    (receipt,) = sink.receipts
    assert (receipt.tenant, receipt.key) == ("acme", "ci")
    assert served.engine.requests[0].tenant == "acme"


def ask(served, api: str):
    headers = {"x-api-key": "kvl_secret", "authorization": "Bearer kvl_secret"}
    with served.client(headers=headers) as client:
        if api == "messages":
            return client.post("/v1/messages", json={"model": CLAUDE, "max_tokens": 9, "messages": MESSAGES})
        if api == "generate":
            return client.post(GENERATE, json={"contents": CONTENTS})
        return client.post("/v1/chat/completions", json={"model": "gpt-5.5", "messages": MESSAGES})


@pytest.mark.parametrize(("api", "status"), [("messages", 402), ("generate", 429), ("chat", 429)])
def test_over_budget(start, api, status):
    served = start(ring=ring(budget=Decimal("0.5")), spent=Decimal("0.5"))
    response = ask(served, api)
    assert response.status_code == status
    error = response.json()["error"]
    assert "has spent 0.5 of its 0.5 dollars" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    if api == "messages":
        assert error["type"] == "billing_error"
    if api == "chat":
        assert error["code"] == "insufficient_quota"


def test_what_a_request_cost_counts_at_once(start):
    served = start(ring=ring(budget=Decimal("0.000001")))
    assert ask(served, "chat").status_code == 200
    assert ask(served, "chat").status_code == 429


def test_over_its_rate(start):
    served = start(ring=ring(rate=2))
    assert [ask(served, "messages").status_code for _ in range(3)] == [200, 200, 429]
    refused = ask(served, "chat")
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert int(refused.headers["retry-after"]) == 60
    served.service.clock.advance(61)
    assert ask(served, "chat").status_code == 200
