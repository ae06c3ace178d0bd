"""The official SDK, reading what the dialect writes through its own types."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import (
    InputJSONDelta,
    MessageDeltaUsage,
    RawContentBlockDeltaEvent,
    RawMessageDeltaEvent,
    RawMessageStartEvent,
    TextBlock,
    ToolUseBlock,
)
from anthropic.types.beta import BetaMessage
from pydantic import BaseModel

from kvledger.engine.request import FinishReason
from kvledger.providers.dialect import ToolCall
from tests.providers.anthropic.server import Script, Server
from tests.providers.anthropic.world import LONG, assistant, tool, tool_result, user

MODEL = "claude-opus-5"
SYSTEM: list[Any] = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
HELLO: list[Any] = [{"role": "user", "content": "Hello there"}]
MARK: Any = {"type": "ephemeral"}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> anthropic.Anthropic:
    return server.client()


def strict(message: BaseModel) -> None:
    """What was read is what the SDK's types allow, literal for literal: they are lenient when they read."""
    type(message).model_validate_json(message.model_dump_json(warnings="error"), strict=True)
    assert not message.model_extra


def test_a_message_and_its_usage(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=HELLO, cache_control=MARK)
    strict(message)
    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert block.text == "Hello, world"
    assert (message.role, message.type, message.model) == ("assistant", "message", MODEL)
    assert (message.stop_reason, message.stop_sequence, message.diagnostics) == ("end_turn", None, None)
    assert message.id.startswith("msg_")
    assert message._request_id == "req_9"
    usage = message.usage
    assert (usage.input_tokens, usage.output_tokens) == (0, 7)
    assert (usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (611, 0)
    assert usage.cache_creation is not None
    split = usage.cache_creation
    assert (split.ephemeral_1h_input_tokens, split.ephemeral_5m_input_tokens) == (600, 11)
    assert usage.output_tokens_details is not None
    assert usage.output_tokens_details.thinking_tokens == 0
    assert usage.server_tool_use is not None
    assert (usage.server_tool_use.web_search_requests, usage.server_tool_use.web_fetch_requests) == (0, 0)
    assert (usage.service_tier, usage.speed, usage.inference_geo) == ("standard", "standard", "not_available")
    again = client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=HELLO, cache_control=MARK)
    assert (again.usage.cache_read_input_tokens, again.usage.cache_creation_input_tokens) == (611, 0)


def test_counts_are_zero_and_not_null_without_a_cache(client: anthropic.Anthropic) -> None:
    usage = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO).usage
    assert (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens) == (11, 0, 0)
    assert usage.cache_creation is not None


def test_speed_and_region_are_echoed(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=5, messages=HELLO, speed="fast", inference_geo="us")
    assert (message.usage.speed, message.usage.inference_geo) == ("fast", "us")


def test_a_stream_event_by_event(client: anthropic.Anthropic) -> None:
    stream = client.messages.create(
        model=MODEL, max_tokens=50, system=SYSTEM, messages=HELLO, cache_control=MARK, stream=True
    )
    events = list(stream)
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    for event in events:
        strict(event)
    start, end = events[0], events[-2]
    assert isinstance(start, RawMessageStartEvent)
    assert isinstance(end, RawMessageDeltaEvent)
    assert (start.message.content, start.message.stop_reason, start.message.usage.output_tokens) == ([], None, 0)
    assert start.message.usage.cache_creation is not None
    assert start.message.usage.cache_creation.ephemeral_1h_input_tokens == 600
    assert isinstance(end.usage, MessageDeltaUsage)
    assert (end.usage.input_tokens, end.usage.output_tokens) == (0, 7)
    assert (end.usage.cache_creation_input_tokens, end.usage.cache_read_input_tokens) == (611, 0)
    assert end.delta.stop_reason == "end_turn"


def test_the_streaming_helper(server: Server, client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=MODEL, max_tokens=50, system=SYSTEM, messages=HELLO) as stream:
        assert "".join(stream.text_stream) == "Hello, world"
        final = stream.get_final_message()
    whole = client.messages.create(model=MODEL, max_tokens=50, system=SYSTEM, messages=HELLO)
    assert final.content[0].model_dump(exclude={"parsed_output"}) == whole.content[0].model_dump()
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", 7)
    assert (final.usage.cache_creation_input_tokens, whole.usage.cache_read_input_tokens) == (600, 600)
    assert b"event: ping" in server.handle(server.requests[0]).content


CALLS = (
    ToolCall("toolu_1", "weather", '{"city": "Paris", "days": [1, 2]}'),
    ToolCall("c2", "weather", '{"city": "Rome"}'),
)


def test_tool_calls_streamed_and_whole(server: Server, client: anthropic.Anthropic) -> None:
    server.script = Script(pieces=("Let me look.",), calls=CALLS)
    tools: Any = [tool("weather", cache_control=MARK)]
    whole = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO, tools=tools)
    with client.messages.stream(model=MODEL, max_tokens=50, messages=HELLO, tools=tools) as stream:
        deltas = [
            event.delta.partial_json
            for event in stream
            if isinstance(event, RawContentBlockDeltaEvent) and isinstance(event.delta, InputJSONDelta)
        ]
        final = stream.get_final_message()
    strict(whole)
    for message in (whole, final):
        assert message.stop_reason == "tool_use"
        text, one, two = message.content
        assert isinstance(text, TextBlock)
        assert isinstance(one, ToolUseBlock)
        assert isinstance(two, ToolUseBlock)
        assert (one.id, one.name, one.input) == ("toolu_1", "weather", {"city": "Paris", "days": [1, 2]})
        assert (two.id, two.input) == ("toolu_c2", {"city": "Rome"})
    assert [json.loads(delta)["city"] for delta in deltas] == ["Paris", "Rome"]
    following = client.messages.create(
        model=MODEL,
        max_tokens=50,
        tools=tools,
        messages=[
            *HELLO,
            {"role": "assistant", "content": whole.content},
            {"role": "user", "content": [tool_result("toolu_1"), tool_result("toolu_c2")]},  # type: ignore[list-item]
        ],
    )
    assert following.stop_reason == "tool_use"


def test_calls_without_text_and_arguments_that_are_no_object(server: Server, client: anthropic.Anthropic) -> None:
    server.script = Script(pieces=(), calls=(ToolCall("1", "f", ""), ToolCall("2", "f", "[1]")))
    message = client.messages.create(model=MODEL, max_tokens=50, messages=HELLO)
    assert [block.input for block in message.content if isinstance(block, ToolUseBlock)] == [{}, {"arguments": "[1]"}]


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (Script(), "end_turn", None),
        (Script(reason=FinishReason.LENGTH, output=50), "max_tokens", None),
        (Script(reason=FinishReason.LENGTH, output=20), "model_context_window_exceeded", None),
        (Script(reason=FinishReason.CAPACITY, output=20), "model_context_window_exceeded", None),
        (Script(stop="END"), "stop_sequence", "END"),
        (Script(calls=CALLS), "tool_use", None),
    ],
)
def test_why_it_stopped(
    server: Server, client: anthropic.Anthropic, script: Script, reason: str, sequence: str | None
) -> None:
    """sgl-project/mini-sglang PR#126: always `stop`, whatever happened."""
    server.script = script
    ask: Any = {"model": MODEL, "max_tokens": 50, "messages": HELLO, "stop_sequences": ["END"]}
    whole = client.messages.create(**ask)
    with client.messages.stream(**ask) as stream:
        final = stream.get_final_message()
    for message in (whole, final):
        assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
        assert message.usage.output_tokens == script.output


def test_an_empty_answer_has_no_block(server: Server, client: anthropic.Anthropic) -> None:
    server.script = Script(pieces=("",), output=1)
    assert client.messages.create(model=MODEL, max_tokens=50, messages=HELLO).content == []
    with client.messages.stream(model=MODEL, max_tokens=50, messages=HELLO) as stream:
        assert stream.get_final_message().content == []


def test_a_prewarm(client: anthropic.Anthropic) -> None:
    warm = client.messages.create(model=MODEL, max_tokens=0, system=SYSTEM, messages=HELLO)
    strict(warm)
    assert (warm.content, warm.stop_reason, warm.usage.output_tokens) == ([], "max_tokens", 0)
    assert warm.usage.cache_creation_input_tokens == 600
    assert client.messages.create(
        model=MODEL, max_tokens=5, system=SYSTEM, messages=HELLO
    ).usage.cache_read_input_tokens


def test_counting_tokens(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model=MODEL, system=SYSTEM, messages=HELLO).input_tokens == 611


def test_the_beta_interface_reads_the_same(client: anthropic.Anthropic) -> None:
    message = client.beta.messages.create(
        model=MODEL, max_tokens=5, messages=HELLO, betas=["cache-diagnosis-2026-04-07"]
    )
    assert isinstance(message, BetaMessage)
    assert message.usage.cache_read_input_tokens == 0


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (400, anthropic.BadRequestError, "invalid_request_error"),
        (401, anthropic.AuthenticationError, "authentication_error"),
        (403, anthropic.PermissionDeniedError, "permission_error"),
        (404, anthropic.NotFoundError, "not_found_error"),
        (429, anthropic.RateLimitError, "rate_limit_error"),
        (500, anthropic.InternalServerError, "api_error"),
        (529, anthropic.InternalServerError, "overloaded_error"),
    ],
)
def test_errors_are_the_sdk_s_own(
    server: Server, status: int, error: type[anthropic.APIStatusError], kind: str
) -> None:
    server.script.failures = [status] * 3
    with pytest.raises(error, match=r"Try again\.") as raised:
        server.client().with_options(max_retries=0).messages.create(model=MODEL, max_tokens=5, messages=HELLO)
    assert raised.value.status_code == status
    assert raised.value.request_id == "req_9"
    assert raised.value.type == kind


@pytest.mark.parametrize("status", [429, 500, 529])
def test_the_sdk_tries_again(server: Server, client: anthropic.Anthropic, status: int) -> None:
    server.script.failures = [status, status]
    assert client.messages.create(model=MODEL, max_tokens=5, messages=HELLO).stop_reason == "end_turn"
    assert len(server.requests) == 3


def test_a_wrong_key_and_a_bearer_token(server: Server) -> None:
    with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
        server.client("other").messages.create(model=MODEL, max_tokens=5, messages=HELLO)
    http = server.client()._client
    bearer = anthropic.Anthropic(auth_token="secret", base_url="http://claude.test", http_client=http)
    assert bearer.messages.create(model=MODEL, max_tokens=5, messages=HELLO).content


def test_refusals_arrive_as_sentences(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match=r"must be between 0 and 1, not 1\.5"):
        client.messages.create(model=MODEL, max_tokens=5, messages=HELLO, extra_body={"temperature": 1.5})
    with pytest.raises(anthropic.NotFoundError, match="did you mean claude-opus-5"):
        client.messages.create(model="claude-opus-5-1", max_tokens=5, messages=HELLO)
    short_first: list[Any] = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, *SYSTEM]
    with pytest.raises(anthropic.BadRequestError, match="longer lifetimes first"):
        client.messages.create(model=MODEL, max_tokens=5, system=short_first, messages=HELLO)


def test_a_stream_that_breaks_raises(server: Server, client: anthropic.Anthropic) -> None:
    server.script.breaks = True
    got = []
    with (
        pytest.raises(anthropic.APIStatusError, match="Overloaded"),
        client.messages.stream(model=MODEL, max_tokens=5, messages=HELLO) as stream,
    ):
        got += stream.text_stream
    assert server.script.pieces[0] == "Hello"


def turn(client: anthropic.Anthropic, previous: str | None, **fields: Any) -> anthropic.types.Message:
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "system": SYSTEM, "messages": HELLO, "cache_control": MARK}
    message = client.messages.create(**{**ask, **fields}, diagnostics={"previous_message_id": previous})
    strict(message)
    return message


@pytest.mark.parametrize(
    ("fields", "kind", "missed"),
    [
        ({"model": "claude-opus-5-5"}, "model_changed", 611),
        ({"tools": [tool("t")]}, "tools_changed", 611),
        ({"system": [{**SYSTEM[0], "text": "y" + LONG}]}, "system_changed", 611),
        ({"messages": [{"role": "user", "content": "Hello, you"}]}, "messages_changed", 11),
        ({"tool_choice": {"type": "none"}}, "unavailable", None),
        ({"thinking": {"type": "adaptive"}}, "unavailable", None),
    ],
)
def test_diagnostics(client: anthropic.Anthropic, fields: dict[str, Any], kind: str, missed: int | None) -> None:
    first = turn(client, None)
    assert first.diagnostics is None
    found = turn(client, first.id, **fields).diagnostics
    assert found is not None
    assert found.cache_miss_reason is not None
    assert found.cache_miss_reason.type == kind
    assert getattr(found.cache_miss_reason, "cache_missed_input_tokens", None) == missed


def test_diagnostics_of_a_match_and_of_an_unknown_message(client: anthropic.Anthropic) -> None:
    first = turn(client, None)
    longer: list[Any] = [*HELLO, assistant("Hello"), user("more")]
    assert turn(client, first.id, messages=longer).diagnostics is None
    unknown = turn(client, "msg_0").diagnostics
    assert unknown is not None
    assert unknown.cache_miss_reason is not None
    assert unknown.cache_miss_reason.type == "previous_message_not_found"


def test_diagnostics_stand_at_the_start_of_a_stream(client: anthropic.Anthropic) -> None:
    first = turn(client, None)
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "system": "other", "messages": HELLO, "cache_control": MARK}
    with client.messages.stream(**ask, diagnostics={"previous_message_id": first.id}) as stream:
        final = stream.get_final_message()
    assert final.diagnostics is not None
    assert final.diagnostics.cache_miss_reason is not None
    assert final.diagnostics.cache_miss_reason.type == "system_changed"


def test_an_expired_entry_is_no_difference(server: Server, client: anthropic.Anthropic) -> None:
    first = turn(client, None)
    server.clock.advance(4000)
    again = turn(client, first.id)
    assert again.usage.cache_read_input_tokens == 0
    assert again.diagnostics is None
