"""Whatever is wrong is answered in OpenAI's shape with the right status, and the server serves on."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from kvledger.api.body import MIB
from tests.api.conftest import eventually
from tests.api.scripted import CONTEXT, ScriptedEngine

JSON = {"content-type": "application/json"}
CHAT = "/v1/chat/completions"


def error_of(response, status: int) -> dict:
    """The error in a response, after checking that it is one sentence in the right shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".")
    assert "Traceback" not in response.text
    return error


def test_a_wrong_field(served):
    error = error_of(served.chat(max_tokens="x"), 400)
    assert error == {
        "message": "`max_tokens` must be an integer or null, not a string.",
        "type": "invalid_request_error",
        "param": "max_tokens",
        "code": None,
    }
    assert served.chat().status_code == 200


def test_the_sdk_understands_it(served):
    with pytest.raises(openai.BadRequestError) as caught:
        served.sdk().chat.completions.create(model="scripted", messages=[])
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"nonsense", b'{"temperature":NaN}', b"[" * 500_000, b'{"model":"\\ud800"}', b"\xff\xfe"]
)
def test_broken_json(served, raw):
    with served.client() as client:
        error_of(client.post(CHAT, content=raw, headers=JSON), 400)
    assert served.chat().status_code == 200


def test_unknown_model(served):
    error = error_of(served.chat(model="gtp-5"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "use `scripted`" in error["message"]
    assert served.chat(model="alias").json()["model"] == "alias"


def test_prompt_that_can_never_fit(served):
    error = error_of(served.chat("x" * 5000), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert str(CONTEXT) in error["message"]
    assert str(5000 + len("user: ") + 1) in error["message"]


def test_token_outside_the_vocabulary(served):
    assert "tokens 0 to 255" in error_of(served.chat(logit_bias={"256": 1}), 400)["message"]


def test_unknown_paths_and_methods(served):
    with served.client() as client:
        assert "There is no GET /v1/nothing" in error_of(client.get("/v1/nothing"), 404)["message"]
        response = client.get(CHAT)
        assert "use POST" in error_of(response, 405)["message"]
        assert response.headers["allow"] == "POST"
        assert client.delete("/v1/models").status_code == 405


def test_models(served):
    with served.client() as client:
        listed = client.get("/v1/models").json()
        assert [model["id"] for model in listed["data"]] == ["scripted", "alias"]
        assert client.get("/v1/models/alias").json() == listed["data"][1]
        assert error_of(client.get("/v1/models/some/other"), 404)["code"] == "model_not_found"
    assert served.sdk().models.retrieve("scripted").owned_by == "kvledger"


def test_health(served):
    with served.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        served.service.closing = True
        assert client.get("/health").status_code == 503


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_only_json_is_read(served, kind):
    with served.client() as client:
        error_of(client.post(CHAT, content=b"{}", headers={"content-type": kind}), 415)


class TestLargeBodies:
    def test_ten_megabytes(self, served):
        assert error_of(served.chat("x" * 10_000_000), 413)["code"] == "request_too_large"
        assert served.chat().status_code == 200

    def test_ten_megabytes_without_a_length(self, served):
        with served.client() as client:
            pieces = (b"x" * 100_000 for _ in range(100))
            error_of(client.post(CHAT, content=pieces, headers=JSON), 413)
            assert client.get("/health").status_code == 200

    def test_just_under_the_limit_is_read(self, served):
        filler = "x" * (8 * MIB - 200)
        assert error_of(served.chat(filler), 400)["code"] == "context_length_exceeded"

    def test_many_at_once_are_not_all_held(self, served):
        served.service.bodies.total = served.service.bodies.small = 1000
        assert error_of(served.chat("x" * 2000), 429)["code"] == "rate_limit_exceeded"
        assert served.chat().status_code == 200

    def test_half_sent_bodies_lock_nobody_out(self, served):
        bodies = served.service.bodies
        bodies._held = bodies.total
        assert served.chat().status_code == 200
        bodies._held = 0

    def test_a_body_that_does_not_arrive_is_given_up(self, served):
        served.service.bodies.seconds = 0.2
        with served.client() as client:

            def slowly():
                yield b'{"model":'
                time.sleep(1)
                yield b"1}"

            error_of(client.post(CHAT, content=slowly(), headers=JSON), 408)
        assert served.service.bodies._held == 0

    def test_nothing_stays_counted(self, served):
        served.chat()
        served.chat("x" * 10_000_000)
        served.chat(max_tokens=0)
        assert served.service.bodies._held == 0


class TestKeys:
    @pytest.fixture
    def locked(self, start):
        return start(keys=("secret-one", "sécret-two"))

    def test_without_and_with_a_wrong_key(self, locked):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret-one"}):
            with locked.client(headers=headers) as client:
                for response in (client.post(CHAT, json={}), client.get("/v1/models"), client.get("/v1/models/x")):
                    assert error_of(response, 401)["code"] == "invalid_api_key"
                    assert response.headers["www-authenticate"] == "Bearer"
                assert client.get("/health").status_code == 200

    def test_each_key_is_its_own_tenant(self, locked):
        for key in ("secret-one", "sécret-two"):
            headers = {"authorization": f"Bearer {key}".encode()}
            with locked.client(headers=headers) as client:
                client.post(CHAT, json={"model": "scripted", "messages": [{"role": "user", "content": "a"}]})
        first, second = (request.tenant for request in locked.engine.requests)
        assert first != second
        assert "secret" not in first

    def test_the_sdk_raises_its_own_error(self, locked):
        with pytest.raises(openai.AuthenticationError):
            locked.sdk(key="wrong").models.list()

    def test_a_tenant_cannot_be_chosen_in_the_body(self, served):
        served.chat(tenant="other", user="other")
        assert served.engine.requests[0].tenant == ""


class TestOverload:
    def test_a_full_queue(self, start):
        served = start(engine=ScriptedEngine(max_queue=2))
        served.engine.go.clear()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(served.chat, "hi") for _ in range(2)]
            assert eventually(lambda: served.engine.num_running == 2)
            response = served.chat("hi")
            assert error_of(response, 429)["type"] == "rate_limit_error"
            assert response.headers["retry-after"] == "2"
            served.engine.go.set()
            assert [future.result().status_code for future in waiting] == [200, 200]

    def test_choices_are_taken_all_or_none(self, start):
        served = start(engine=ScriptedEngine(max_queue=2, pause=0.01))
        error_of(served.chat("!endless", n=3), 429)
        assert served.engine.num_running == 0
        assert len(served.engine.cancelled) == 2

    def test_a_thousand_at_once(self, start):
        served = start(engine=ScriptedEngine(max_queue=50))
        body = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "hi"}]}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
        raw = head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body
        connections = [socket.create_connection(("127.0.0.1", served.port)) for _ in range(1000)]
        for connection in connections:
            connection.sendall(raw)
        statuses = []
        for connection in connections:
            with connection:
                connection.settimeout(30)
                statuses.append(int(connection.makefile("rb").readline().split()[1]))
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 50
        assert served.chat().status_code == 200


def test_an_unforeseen_fault_gives_nothing_away(served, monkeypatch, caplog):
    def broken(*_args, **_options):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(served.service.template, "render", broken)
    error = error_of(served.chat(), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]
    monkeypatch.undo()
    assert served.chat().status_code == 200


class TestShutdown:
    def test_running_work_is_finished(self, start):
        served = start(engine=ScriptedEngine(pause=0.01), drain=10)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(served.chat("x" * 50)))
        thread.start()
        assert eventually(lambda: served.engine.num_running == 1)
        served.server.should_exit = True
        thread.join(20)
        assert answers[0].status_code == 200
        assert answers[0].json()["choices"][0]["message"]["content"] == "x" * 50

    def test_what_does_not_finish_in_time_is_failed(self, start):
        served = start(engine=ScriptedEngine(pause=0.01), drain=0.3)
        streamed = served.sdk().chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": "!endless"}], stream=True
        )
        next(streamed)
        answers = []
        thread = threading.Thread(target=lambda: answers.append(served.chat("!endless")))
        thread.start()
        assert eventually(lambda: served.engine.num_running == 2)
        served.server.should_exit = True
        with pytest.raises(openai.APIError, match="shutting down"):
            for _ in streamed:
                pass
        thread.join(20)
        assert error_of(answers[0], 503)["code"] == "shutting_down"

    def test_new_work_is_refused(self, start):
        served = start(engine=ScriptedEngine(pause=0.01), drain=5)
        with served.client() as client:
            client.get("/health")
            served.engine.closing = True
            served.service.closing = True
            body = {"model": "scripted", "messages": [{"role": "user", "content": "a"}]}
            error_of(client.post(CHAT, json=body), 503)


class TestSlowReaders:
    @staticmethod
    def connect(served, max_tokens: int) -> socket.socket:
        """A client that asks for an endless stream and never reads it."""
        messages = [{"role": "user", "content": "!endless"}]
        body = json.dumps({"model": "scripted", "messages": messages, "stream": True, "max_tokens": max_tokens})
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(f"{head}\r\n\r\n{body}".encode())
        return connection

    def test_the_engine_does_not_wait_for_them(self, served):
        with self.connect(served, max_tokens=20_000):
            assert eventually(lambda: served.engine.num_running == 1)
            assert served.chat().status_code == 200
            assert eventually(lambda: served.engine.num_running == 0, seconds=60)
            assert served.engine.cancelled == []
            assert served.chat().status_code == 200

    @pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system cannot time out unread data")
    def test_they_count_as_gone_after_a_while(self, start, monkeypatch):
        monkeypatch.setattr("kvledger.api.server.UNREAD_TIMEOUT", 1)
        served = start()
        with self.connect(served, max_tokens=900_000):
            assert eventually(lambda: served.engine.cancelled, seconds=60)
            assert eventually(lambda: not served.server.server_state.connections)
