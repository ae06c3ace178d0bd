"""The real thing: `kvledger serve` as its own process, the default model, OpenAI's own client."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import openai
import pytest

from kvledger.errors import ModelNotFoundError
from kvledger.ledger.store import Ledger
from kvledger.model.store import resolve

pytestmark = pytest.mark.slow

COMMAND = (sys.executable, "-c", "from kvledger.cli import main; main()", "serve", "--ledger", "none")
QUESTION = [{"role": "user", "content": "Name three colours of the rainbow."}]


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    greeting: str

    @property
    def port(self) -> int:
        return int(re.search(r":(\d+)/", self.url)[1])

    def sdk(self, **options) -> openai.OpenAI:
        settings = {"api_key": "none", "max_retries": 0, "timeout": 120, **options}
        return openai.OpenAI(base_url=self.url, http_client=httpx.Client(trust_env=False, verify=False), **settings)

    def ask(self, messages=QUESTION, **fields):
        return self.sdk().chat.completions.create(
            model="smollm2", messages=messages, **{"temperature": 0, "max_tokens": 24, **fields}
        )


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., Served]]:
    try:
        resolve("smollm2")
    except ModelNotFoundError:
        pytest.skip("the default model is not here: run `kvledger pull smollm2`")
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, port: int = 0) -> Served:
        process = subprocess.Popen(
            [*COMMAND, "--port", str(port), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        greeting = process.stdout.readline()
        assert greeting, process.stderr.read()
        return Served(process, re.search(r"http://\S+/v1", greeting)[0], greeting)

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served(start) -> Served:
    return start()


def test_streamed_and_whole_are_the_same_text(served):
    whole = served.ask()
    text = whole.choices[0].message.content
    assert len(text) > 10
    chunks = list(served.ask(stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)


def test_the_second_time_the_prompt_is_reused(served):
    messages = [{"role": "user", "content": "How long is a piece of string? " * 8}]
    first, second = served.ask(messages), served.ask(messages)
    assert second.choices[0].message.content == first.choices[0].message.content
    assert first.usage.prompt_tokens_details.cached_tokens < first.usage.prompt_tokens / 2
    assert second.usage.prompt_tokens_details.cached_tokens == second.usage.prompt_tokens - 1


def test_a_later_turn_reuses_the_answer_too(served):
    first = served.ask(max_tokens=12)
    answer = first.choices[0].message.model_dump()
    second = served.ask([*QUESTION, answer, {"role": "user", "content": "And why?"}])
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 1


def test_seed_choices_and_logprobs(served):
    options = {"n": 3, "seed": 5, "temperature": 1.0, "logprobs": True, "top_logprobs": 3, "max_tokens": 8}
    first, again = served.ask(**options), served.ask(**options)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1
    assert first.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in first.choices)
    for entry in first.choices[0].logprobs.content:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert entry.logprob <= 0


def test_stop_strings_end_the_text(served):
    text = served.ask(max_tokens=40).choices[0].message.content
    stop = text[10:13]
    stopped = served.ask(max_tokens=40, stop=[stop]).choices[0]
    assert stopped.message.content == text[: text.index(stop)]
    assert stopped.finish_reason == "stop"


def test_a_prompt_of_200_000_tokens(served):
    with ThreadPoolExecutor(1) as pool:
        running = served.ask(stream=True, max_tokens=200)
        next(running)
        refused = pool.submit(served.ask, [{"role": "user", "content": "The quick brown fox jumps. " * 33_000}])
        assert list(running)[-1].choices[0].finish_reason in ("stop", "length")
        with pytest.raises(openai.BadRequestError, match=r"needs about \d{6} tokens") as caught:
            refused.result()
    assert caught.value.code == "context_length_exceeded"
    assert served.ask().choices[0].message.content


def test_clients_that_leave_make_room(served):
    messages = [{"role": "user", "content": "Write a very long story."}]
    streams = [served.ask(messages, stream=True, max_tokens=4000) for _ in range(4)]
    for stream in streams:
        next(stream)
        stream.close()
    begin = time.monotonic()
    served.ask(max_tokens=1)
    assert time.monotonic() - begin < 10


def test_a_full_queue_is_429(start):
    served = start("--max-running", "1", "--max-queue", "1")
    running = served.ask(stream=True, max_tokens=1000, extra_body={"ignore_eos": True})
    next(running)

    def status(_number: int) -> tuple[int, str | None]:
        body = {"model": "smollm2", "messages": QUESTION, "max_tokens": 1}
        response = httpx.post(f"{served.url}/chat/completions", json=body, timeout=60, trust_env=False)
        return response.status_code, response.headers.get("retry-after")

    with ThreadPoolExecutor(4) as pool:
        answers = pool.map(status, range(4))
        time.sleep(2)
        running.close()
        statuses, waits = zip(*answers, strict=True)
    assert sorted(statuses) == [200, 429, 429, 429]
    assert all(int(wait) >= 1 for wait in waits if wait is not None)


def test_a_port_in_use(served):
    begin = time.monotonic()
    second = subprocess.run([*COMMAND, "--port", str(served.port)], capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert f"Port {served.port} on 127.0.0.1 is in use" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert time.monotonic() - begin < 10
    assert served.ask(max_tokens=1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_an_orderly_end_finishes_what_runs(start, number, code):
    served = start()
    stream = served.ask(stream=True, max_tokens=20, extra_body={"ignore_eos": True})
    next(stream)
    served.process.send_signal(number)
    assert list(stream)[-1].choices[0].finish_reason == "length"
    _, errors = served.process.communicate(timeout=30)
    assert served.process.returncode == code
    assert "Traceback" not in errors


def test_killed_and_started_again(start):
    served = start()
    stream = served.ask(stream=True, max_tokens=500)
    next(stream)
    served.process.kill()
    with pytest.raises((openai.APIError, httpx.HTTPError)):
        list(stream)
    again = start(port=served.port)
    assert again.ask().choices[0].message.content


def test_after_kill_9_the_same_prompt_hits_to_the_same_length(start, tmp_path):
    messages = [{"role": "user", "content": "Tell me about the rivers of Europe, one by one. " * 30}]
    disk = ("--cache-folder", str(tmp_path), "--cache-disk", "500M")
    served = start(*disk)
    first, warm = served.ask(messages), served.ask(messages)
    root = served.url.removesuffix("/v1")
    while httpx.get(f"{root}/v1/cache", trust_env=False).json()["tiers"]["disk"]["unwritten_bytes"]:
        time.sleep(0.2)  # the writer works only when nobody else needs the processor
    served.process.kill()
    served.process.wait()
    again = start(*disk).ask(messages)
    usage = again.usage
    assert usage.prompt_tokens_details.cached_tokens == warm.usage.prompt_tokens_details.cached_tokens
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    texts = {answer.choices[0].message.content for answer in (first, warm, again)}
    assert len(texts) == 1


def test_keys(start):
    served = start("--api-key", "one", "--api-key", "two")
    with pytest.raises(openai.AuthenticationError):
        served.ask()
    first, second = (
        served.sdk(api_key=key).chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=1)
        for key in ("one", "two")
    )
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens == 0  # another tenant's KV is not there for us


def test_the_books_are_kept_under_a_providers_name(start, tmp_path):
    path = tmp_path / "ledger.db"
    served = start("--ledger", str(path))
    messages = [{"role": "user", "content": "Tell me about the rivers of Europe, one by one. " * 30}]
    for model in ("deepseek-chat", "smollm2"):
        served.sdk().chat.completions.create(model=model, messages=messages, max_tokens=4)
    provider, local = (row.receipt for row in Ledger(path).rows())
    assert (provider.provider, provider.bill.total > 0) == ("deepseek", True)
    assert provider.usage.split.prompt_tokens == local.usage.split.prompt_tokens
    assert local.usage.split.read == local.reused_tokens == local.usage.split.prompt_tokens - 1
    assert min(local.prefill, local.kv_byte_seconds, local.kv_pool_bytes) > 0


def test_a_connection_that_sends_nonsense(served):
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert b"400" in connection.recv(1000)
    assert served.ask(max_tokens=1)
