"""The emulator as a test suite meets it: routes under /emulator, the fixture, and assertions that say what is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.testing.emulator import Emulator
from kvledger.testing.handle import RunningEmulator, Script
from kvledger.testing.tokenizer import EstimatingTokenizer
from tests.testing.conftest import LONG, NOON, World

MODEL = "gpt-5.5"


def chat(world: World, *texts: str, model: str = MODEL):
    roles = ("user", "assistant")
    messages = [{"role": roles[(i + 1) % 2] if i else "system", "content": text} for i, text in enumerate(texts)]
    return world.openai().chat.completions.create(model=model, messages=messages)


class TestRoutes:
    def test_the_clock_stands_until_it_is_moved(self, world):
        with world.http() as http:
            before = http.get("/emulator/clock").json()["now"]
            assert http.post("/emulator/clock", json={"advance": 90.5}).json()["now"] == before + 90.5
            for body in ({"advance": -1}, {"advance": "x"}, {}, {"forward": 1}):
                assert http.post("/emulator/clock", json=body).status_code == 400
            assert http.get("/emulator/clock").json()["now"] == before + 90.5

    def test_receipts_are_shown_and_forgotten(self, world):
        chat(world, "s", "u")
        with world.http() as http:
            (receipt,) = http.get("/emulator/requests").json()["requests"]
            assert receipt["model"] == MODEL
            assert receipt["bill"]["lines"]
            http.delete("/emulator/requests")
            assert http.get("/emulator/requests").json()["requests"] == []

    def test_answers_are_given_in_order(self, world):
        with world.http() as http:
            scripts = [{"text": "first"}, {"error": 529, "message": "Later."}]
            assert http.post("/emulator/answers", json={"answers": scripts}).json() == {"waiting": 2}
            assert http.post("/emulator/answers", json={"answers": [{"error": 200}]}).status_code == 400
            assert http.post("/emulator/answers", json={"answers": [{"txt": "x"}]}).status_code == 400
        assert chat(world, "s", "u").choices[0].message.content == "first"
        with pytest.raises(Exception, match="Later"):
            chat(world, "s", "u")
        assert "stand-in" in chat(world, "s", "u").choices[0].message.content


class TestAssertions:
    def test_a_chat_that_goes_on_passes_all(self, world):
        answer = chat(world, LONG, "Hello?").choices[0].message.content
        chat(world, LONG, "Hello?", answer, "And now?")
        world.emulator.assert_reads(2, at_least=0.9)
        world.emulator.assert_nothing_expired()
        world.emulator.assert_no_volatile_prefix()

    def test_a_timestamp_is_shown_where_it_stands(self, world):
        chat(world, f"It is 12:00. {LONG}", "Hello?")
        chat(world, f"It is 12:01. {LONG}", "Hello?")
        with pytest.raises(AssertionError, match=r"messages\[0\]\.content") as caught:
            world.emulator.assert_no_volatile_prefix()
        assert "12:01" in str(caught.value)
        with pytest.raises(AssertionError, match="system_changed"):
            world.emulator.assert_reads(2)

    def test_what_cannot_be_judged_is_no_success(self, world):
        chat(world, "Short.", "Hello?")
        chat(world, "Brief.", "Hello?")
        with pytest.raises(AssertionError, match="cannot be judged"):
            world.emulator.assert_no_volatile_prefix()

    def test_the_stand_ins_own_name_has_no_rules(self, world):
        chat(world, LONG, "Hello?", model="stand-in")
        with pytest.raises(AssertionError, match="provider's model name"):
            world.emulator.assert_reads(1)

    def test_a_turn_that_never_was(self, world):
        with pytest.raises(AssertionError, match="no request 1: 0 were made"):
            world.emulator.assert_reads(1)


def test_requests_at_the_same_time_cannot_read_each_other():
    with RunningEmulator(Emulator.create(latency=0.3, now=NOON)) as running:
        world = World(running)
        threads = [threading.Thread(target=chat, args=(world, LONG, f"Question {n}?")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [receipt.usage.split.read for receipt in running.receipts] == [0] * 4
        assert chat(world, LONG, "And now?").usage.prompt_tokens_details.cached_tokens > 0


def test_the_fixture(kvledger_emulator):
    url = f"{kvledger_emulator.openai_url}/chat/completions"
    kvledger_emulator.answer(Script(text="scripted"))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "u"}]}
    answer = httpx.post(url, json=body, trust_env=False).json()
    assert answer["choices"][0]["message"]["content"] == "scripted"
    assert len(kvledger_emulator.receipts) == 1


def test_the_command():
    command = [sys.executable, "-c", "from kvledger.cli import main; main()", "emulate", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://[\d.:]+", process.stdout.readline())[0]
        assert httpx.get(f"{url}/health", trust_env=False).json() == {"status": "ok"}
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_persona_that_is_none():
    command = [sys.executable, "-c", "from kvledger.cli import main; main()", "emulate", "--port", "0", "--as", "x:y"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1


class TestTokens:
    @given(st.text())
    def test_nothing_is_lost(self, text):
        tokenizer = EstimatingTokenizer()
        tokens, spans = tokenizer.encode_run(text)
        assert tokenizer.decode(tokens) == text
        assert len(tokens) == len(spans)

    def test_english_has_some_four_characters_per_token(self):
        assert 3.5 < len(LONG) / len(EstimatingTokenizer().encode(LONG)) < 4.5


def test_the_clock_stays_within_what_a_calendar_has(world):
    http = world.http()
    before = http.get("/emulator/clock").json()["now"]
    refused = http.post("/emulator/clock", json={"advance": 1e18})
    assert refused.status_code == 400
    assert "2100" in refused.text
    assert http.get("/emulator/clock").json()["now"] == before


def test_another_s_host_name_gets_nothing(world):
    http = world.http()
    for path in ("/emulator/requests", "/v1beta/cachedContents", "/v1/models", "/metrics"):
        for name in ("evil.example", "127.0.0.1.evil.example"):
            assert http.get(path, headers={"host": name}).status_code == 403, path
    assert http.get("/health", headers={"host": "evil.example"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_a_number_that_no_float_holds_is_a_bad_request(world, path):
    body = '{"model":"gpt-5.1","input":"hi","messages":[{"role":"user","content":"hi"}],"prewarm":1e400}'
    answer = world.http().post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
