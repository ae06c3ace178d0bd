from __future__ import annotations

import json

import openai
import pytest

from tests.api.conftest import eventually


def ask(served, content="hello", **fields):
    return served.sdk().chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": content}], **fields
    )


def test_whole_answer(served):
    answer = ask(served, "héllo")
    assert answer.choices[0].message.content == "héllo"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.object == "chat.completion"
    assert answer.model == "scripted"
    assert answer.created == 1_700_000_000
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id == answer.id


def test_usage_counts_tokens_and_reuse(served):
    usage = ask(served, "hello, this is long enough").usage
    prompt = len("user: hello, this is long enough")
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (prompt, 26, prompt + 26)
    assert usage.prompt_tokens_details.cached_tokens == 16
    assert usage.completion_tokens_details.reasoning_tokens == 0


def test_choices_share_one_prompt_in_the_usage(served):
    answer = ask(served, "abc", n=3, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == ["abc"] * 3
    assert answer.usage.prompt_tokens == len("user: abc")
    assert answer.usage.prompt_tokens_details.cached_tokens == len("user: abc") - 1
    assert answer.usage.completion_tokens == 9
    assert [request.sampling.seed for request in served.engine.requests] == [7, 8, 9]


def test_every_field_reaches_the_engine(served):
    ask(
        served,
        max_completion_tokens=3,
        stop=["a", "b"],
        temperature=0.5,
        top_p=0.25,
        presence_penalty=-1,
        frequency_penalty=1.5,
        logit_bias={"65": 2.5},
        logprobs=True,
        top_logprobs=2,
        extra_body={"top_k": 5, "min_p": 0.125, "repetition_penalty": 1.25, "ignore_eos": True},
    )
    (request,) = served.engine.requests
    sampling = request.sampling
    assert (request.max_tokens, request.stop, request.ignore_eos, request.tenant) == (3, ("a", "b"), True, "")
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.25, 5, 0.125)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (-1, 1.5, 1.25)
    assert (sampling.logit_bias, sampling.logprobs, sampling.seed) == (((65, 2.5),), 2, None)


def test_defaults_are_openais(served):
    ask(served)
    (request,) = served.engine.requests
    assert (request.sampling.temperature, request.sampling.top_p, request.max_tokens) == (1.0, 1.0, None)


def test_length_is_said(served):
    answer = ask(served, "hello", max_tokens=2)
    assert answer.choices[0].message.content == "he"
    assert answer.choices[0].finish_reason == "length"


def test_a_full_pool_ends_an_answer_as_length(served):
    assert ask(served, "!capacity").choices[0].finish_reason == "length"


def test_logprobs_name_bytes_below_a_character(served):
    answer = ask(served, "é", logprobs=True, top_logprobs=2)
    entries = answer.choices[0].logprobs.content
    assert [entry.bytes for entry in entries] == [[0xC3], [0xA9]]
    assert entries[0].token == "\ufffd"
    assert [top.bytes for top in entries[0].top_logprobs] == [[0xC3], [0xC4]]
    assert [top.logprob for top in entries[0].top_logprobs] == [-0.5, -1.5]


def test_ignored_fields_are_named_in_a_header(served):
    response = served.chat(user="me", store=None, thinking={"type": "enabled"}, **{"bad\nname": 1})
    assert response.status_code == 200
    assert response.headers["x-kvledger-ignored"] == "user, thinking"


class TestStream:
    def test_text_arrives_in_pieces_and_ends_properly(self, served):
        chunks = list(ask(served, "héllo", stream=True))
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [chunk.choices[0].delta.content for chunk in chunks[1:-1]] == list("héllo")
        assert chunks[-1].choices[0].finish_reason == "stop"
        assert chunks[-1].choices[0].delta.content is None
        assert len({chunk.id for chunk in chunks}) == 1
        assert all(chunk.usage is None for chunk in chunks)

    def test_usage_comes_last_when_asked_for(self, served):
        chunks = list(ask(served, "hello", stream=True, stream_options={"include_usage": True}))
        assert chunks[-1].choices == []
        assert chunks[-1].usage.completion_tokens == 5
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens == 10

    def test_bytes_on_the_wire(self, served):
        response = served.chat("hi", stream=True, stream_options={"include_usage": True})
        assert response.headers["content-type"].startswith("text/event-stream")
        events = response.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        bodies = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        assert [body["usage"] is None for body in bodies] == [True] * 4 + [False]
        assert bodies[1]["choices"] == [
            {"index": 0, "delta": {"content": "h"}, "logprobs": None, "finish_reason": None}
        ]
        assert bodies[0]["object"] == "chat.completion.chunk"

    def test_no_usage_key_unless_asked_for(self, served):
        assert '"usage"' not in served.chat("hi", stream=True).text

    def test_choices_interleave_and_each_finishes(self, served):
        chunks = list(ask(served, "abc", stream=True, n=2))
        for index in range(2):
            mine = [c.choices[0] for c in chunks if c.choices[0].index == index]
            assert mine[0].delta.role == "assistant"
            assert "".join(choice.delta.content or "" for choice in mine) == "abc"
            assert mine[-1].finish_reason == "stop"

    def test_logprobs_wait_for_their_text_and_none_is_lost(self, served):
        chunks = list(ask(served, "aé", stream=True, logprobs=True, max_tokens=3))
        told = [entry.bytes for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
        assert told == [[0x61], [0xC3], [0xA9]]

    def test_logprobs_of_a_last_token_without_text(self, served):
        chunks = list(ask(served, "é", stream=True, logprobs=True, max_tokens=1))
        told = [entry.bytes for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
        assert told == [[0xC3]]

    def test_an_error_before_the_first_token_has_a_status(self, served):
        with pytest.raises(openai.InternalServerError, match="A fault ended this step"):
            ask(served, "!error 0", stream=True)

    def test_an_error_in_the_middle_is_an_event(self, served):
        chunks = ask(served, "!error 3", stream=True)
        assert [next(chunks).choices[0].delta.content for _ in range(4)] == ["", "x", "x", "x"]
        with pytest.raises(openai.APIError, match="A fault ended this step"):
            next(chunks)
        assert "[DONE]" not in served.chat("!error 3", stream=True).text
        assert ask(served, "still here").choices[0].message.content == "still here"


class TestDisconnect:
    @pytest.mark.parametrize("streaming", [True, False])
    def test_it_cancels_every_choice(self, served, streaming):
        served.engine.pause = 0.005
        client = served.client()
        body = {"model": "scripted", "messages": [{"role": "user", "content": "!endless"}], "n": 2}
        if streaming:
            with client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as response:
                next(response.iter_raw())
        else:
            with pytest.raises(Exception, match="timed out"):
                client.post("/v1/chat/completions", json=body, timeout=0.2)
        client.close()
        assert eventually(lambda: len(served.engine.cancelled) == 2)
        assert served.engine.num_running == 0

    def test_it_is_noticed_while_the_engine_is_silent(self, served):
        served.engine.go.clear()
        with pytest.raises(openai.APITimeoutError):
            served.sdk(timeout=0.2).chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "!endless"}], stream=True
            )
        assert eventually(lambda: len(served.engine.cancelled) == 1)
        served.engine.go.set()
