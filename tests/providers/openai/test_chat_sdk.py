"""Chat Completions through OpenAI's own client: every field read from its typed objects."""

from __future__ import annotations

import openai
import pytest

from kvledger.engine.request import FinishReason
from kvledger.providers.openai.completions import OpenAIChat
from tests.providers.openai.server import Server
from tests.providers.openai.world import message, words

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Riga"}}</tool_call>'
USER = {"role": "user", "content": "hi"}


def create(server: Server, messages=(USER,), model="gpt-6-sol", **fields):
    return server.sdk().chat.completions.create(model=model, messages=list(messages), **fields)


def test_whole():
    answer = create(Server("Hello there."))
    assert answer.id == f"chatcmpl-{1:032x}"
    assert answer.object == "chat.completion"
    assert answer.model == "gpt-6-sol"
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "Hello there.", "stop")
    assert choice.message.tool_calls is None
    assert choice.logprobs is None


def test_every_usage_field_over_two_turns():
    server, system = Server(), message("system", words(2000), mark={"ttl": "12h"})
    first = create(server, [system, USER]).usage
    second = create(server, [system, USER, {"role": "assistant", "content": "Hello."}, USER]).usage
    assert (first.prompt_tokens, first.completion_tokens, first.total_tokens) == (2002, 7, 2009)
    assert (first.prompt_tokens_details.cached_tokens, first.prompt_tokens_details.cache_write_tokens) == (0, 2002)
    assert (second.prompt_tokens_details.cached_tokens, second.prompt_tokens_details.cache_write_tokens) == (2002, 8)
    assert first.prompt_tokens_details.audio_tokens == 0
    assert first.completion_tokens_details.reasoning_tokens == 0


def test_p24_p25_a_known_zero_is_zero():
    """ollama#17130, sglang#28801: nothing was cached, and the usage says so."""
    details = create(Server()).usage.prompt_tokens_details
    assert (details.cached_tokens, details.cache_write_tokens) == (0, 0)


def test_stream():
    chunks = list(create(Server("Hello there."), stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "Hello there."
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (2, 7)
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert {chunk.id for chunk in chunks} == {f"chatcmpl-{1:032x}"}


def test_a_stream_without_usage_has_none():
    assert all(chunk.usage is None for chunk in create(Server(), stream=True))


def test_choices_share_one_prompt():
    answer = create(Server("x"), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 21)
    chunks = [chunk.choices[0] for chunk in create(Server("x"), n=3, stream=True)]
    assert [choice.index for choice in chunks if choice.finish_reason] == [0, 1, 2]


def test_tool_calls_out():
    answer = create(Server(CALL), tools=[TOOL]).choices[0]
    assert (answer.message.content, answer.finish_reason) == (None, "tool_calls")
    (call,) = answer.message.tool_calls
    assert (call.id, call.type, call.function.name) == ("call_1", "function", "weather")
    assert call.function.arguments == '{"city": "Riga"}'


def test_tool_calls_streamed_as_the_sdk_accumulates_them():
    server = Server(f"Let me see. {CALL}\n{CALL}")
    with server.sdk().chat.completions.stream(model="gpt-6-sol", messages=[USER], tools=[TOOL]) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    assert final.message.content == "Let me see. "
    assert final.finish_reason == "tool_calls"
    assert [(call.id, call.function.name, call.function.arguments) for call in final.message.tool_calls] == [
        (f"call_{n}", "weather", '{"city": "Riga"}') for n in (1, 2)
    ]
    assert "tool_call" not in "".join(event.delta for event in events if event.type == "content.delta")


def test_tool_calls_back_in():
    server = Server("It rains.")
    call = create(Server(CALL), tools=[TOOL]).choices[0].message
    messages = [USER, call.model_dump(), {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    create(server, messages, tools=[TOOL])
    _, said, result = server.asked[0].chat.messages
    assert said.fields["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Riga"}}
    assert (result.role, result.content) == ("tool", "rain")


def test_a_call_cut_short_is_text_and_length():
    answer = create(Server(CALL[:-20], FinishReason.LENGTH), tools=[TOOL]).choices[0]
    assert (answer.message.content, answer.finish_reason) == (CALL[:-20], "length")


def test_allowed_tools_are_the_ones_shown_and_the_cache_does_not_mind():
    other = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
    choice = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "search"}}]},
    }
    server, system = Server(), {"role": "system", "content": words(2000)}
    create(server, [system, USER], tools=[TOOL, other])
    create(server, [system, USER], tools=[TOOL, other], tool_choice=choice)
    assert [tool["function"]["name"] for tool in server.asked[1].chat.tools] == ["search"]
    assert server.accounts[1].split.read > 2000


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("required", "tool_choice"),
        ({"type": "function", "function": {"name": "weather"}}, "tool_choice"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}},
         "tool_choice.allowed_tools.mode"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, "tool_choice.allowed_tools.tools"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function"}]}},
         "tool_choice.allowed_tools.tools[0]"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [3]}},
         "tool_choice.allowed_tools.tools[0]"),
    ],
)  # fmt: skip
def test_a_forced_call_is_refused(choice, param):
    with pytest.raises(openai.BadRequestError) as caught:
        create(Server(), tools=[TOOL], tool_choice=choice)
    assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")


def test_logprobs():
    answer = create(Server("Hi"), logprobs=True, top_logprobs=1).choices[0]
    (entry,) = answer.logprobs.content
    assert (entry.token, entry.logprob, entry.bytes, entry.top_logprobs[0].token) == ("H", -0.5, [72], "h")


@pytest.mark.parametrize(
    ("status", "error", "type"),
    [
        (401, openai.AuthenticationError, "invalid_request_error"),
        (402, openai.APIStatusError, "insufficient_quota"),
        (403, openai.PermissionDeniedError, "permission_error"),
        (404, openai.NotFoundError, "invalid_request_error"),
        (429, openai.RateLimitError, "rate_limit_error"),
        (500, openai.InternalServerError, "server_error"),
        (503, openai.InternalServerError, "server_error"),
    ],
)
def test_errors_are_the_sdks_own(status, error, type):
    with pytest.raises(error) as caught:
        create(Server(status=status))
    assert (caught.value.code, caught.value.type, caught.value.body["message"]) == ("a_code", type, "Not now.")


def test_the_sdk_retries_what_can_be_retried():
    server = Server(status=503)
    handle, seen = server.handle, []

    def once(request):
        seen.append(request)
        server.status = 503 if len(seen) == 1 else 200
        return handle(request)

    server.handle = once
    assert server.sdk(max_retries=1).chat.completions.create(model="gpt-6-sol", messages=[USER]).choices
    assert len(seen) == 2


def test_a_broken_stream_raises():
    with pytest.raises(openai.APIError, match="It broke"):
        list(create(Server(breaks_after=2), stream=True))


def test_a_model_nobody_knows_is_refused_with_near_names():
    with pytest.raises(openai.BadRequestError, match=r"did you mean gpt-6-sol") as caught:
        create(Server(), model="gtp-6-sol")
    assert caught.value.param == "model"


def test_a_wrong_breakpoint_is_refused_by_its_path():
    with pytest.raises(openai.BadRequestError) as caught:
        create(Server(), [message("user", "x", mark={"ttl": "1h"})])
    assert caught.value.param == "messages[0].content[0].prompt_cache_breakpoint.ttl"


def test_what_the_account_goes_by_is_not_called_ignored():
    server = Server()
    create(
        server, prompt_cache_key="k", prompt_cache_options={"mode": "implicit"}, user="u", extra_body={"misspelt": 1}
    )
    assert server.asked[0].ignored == ("user", "misspelt")


@pytest.mark.parametrize(
    ("headers", "key"),
    [({"authorization": "Bearer abc"}, "abc"), ({"authorization": "bearer  abc "}, "abc"),
     ({"api-key": "azure"}, "azure"), ({"authorization": "Basic abc"}, None), ({}, None),
     ({"authorization": "Bearer "}, None)],
)  # fmt: skip
def test_where_the_key_is(headers, key):
    assert OpenAIChat().key(headers, {}) == key
