"""The access log: one line per request, with what it took, without what is nobody's business."""

from __future__ import annotations

import json
import logging

import openai
import pytest

from tests.api.conftest import eventually


@pytest.fixture
def lines(caplog):
    """A function that waits for `count` lines and returns them."""
    caplog.set_level(logging.INFO, logger="kvledger.access")

    def lines(count: int) -> list[dict]:
        def written() -> list[str]:
            return [record.message for record in caplog.records if record.name == "kvledger.access"]

        assert eventually(lambda: len(written()) >= count)
        assert len(written()) == count
        return [json.loads(line) for line in written()]

    return lines


def test_an_answered_request(served, lines):
    answer = served.chat("hello, this is long enough")
    (line,) = lines(1)
    assert line.pop("duration_s") >= 0
    assert line == {
        "time": "2023-11-14T22:13:20.000+00:00",
        "id": answer.json()["id"],
        "route": "POST /v1/chat/completions",
        "status": 200,
        "prompt_tokens": 32,
        "reused_tokens": 16,
        "output_tokens": 26,
        "ttft_s": 0.75,
        "finish_reason": "stop",
        "miss_reason": "cold_start",
        "miss_position": 16,
        "miss_path": "messages[0].content",
    }


def test_choices_are_one_line(served, lines):
    served.chat("abc", n=3)
    (line,) = lines(1)
    assert (line["prompt_tokens"], line["output_tokens"], line["finish_reason"]) == (len("user: abc"), 9, "stop")
    assert "miss_reason" not in line


def test_a_key_is_never_written_its_tenant_is(start, lines):
    served = start(keys=("very-secret-key",))
    served.sdk(key="very-secret-key").models.list()
    with pytest.raises(openai.AuthenticationError):
        served.sdk(key="wrong-secret-key").models.list()
    accepted, refused = lines(2)
    assert accepted["tenant"] == served.service.keys.tenant("Bearer very-secret-key")[:12]
    assert (refused["status"], refused["route"]) == (401, "GET /v1/models")
    assert "tenant" not in refused
    assert "secret" not in json.dumps([accepted, refused])


def test_a_client_that_left_is_a_line_when_its_work_has_ended(served, lines):
    stream = served.sdk().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": "!endless"}], stream=True
    )
    next(stream)
    stream.close()
    (line,) = lines(1)
    assert line["finish_reason"] == "cancelled"
    assert line["output_tokens"] >= 1


def test_a_fault_is_a_500(served, lines, monkeypatch):
    monkeypatch.setattr(served.service.names, "find", lambda name, api: 1 / 0)
    served.chat("hello")
    (line,) = lines(1)
    assert line["status"] == 500


def test_what_a_client_makes_up_is_cut_and_cannot_forge_a_line(served, lines):
    with served.client() as client:
        client.get("/x%0A%7B%22status%22:200%7D" + "y" * 1000)
    (line,) = lines(1)
    assert line["status"] == 404
    assert len(line["route"]) == 200
    assert line["route"].startswith('GET /x\n{"status"')


def test_an_error_in_the_middle_of_a_stream_says_so(served, lines):
    served.chat("!error 3", stream=True)
    (line,) = lines(1)
    assert (line["status"], line["finish_reason"], line["output_tokens"]) == (200, "error", 3)


def test_routine_checks_are_lines_only_when_they_fail(served, lines):
    with served.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 200
        served.service.closing = True
        assert client.get("/health").status_code == 503
    (line,) = lines(1)
    assert (line["route"], line["status"]) == ("GET /health", 503)
