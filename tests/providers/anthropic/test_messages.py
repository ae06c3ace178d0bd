"""Bodies of `POST /v1/messages`, checked field by field."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.engine.request import FinishReason, Sampling
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.anthropic.messages import WITHOUT_EFFECT, AnthropicMessages, Body
from kvledger.providers.dialect import Answer, Asked, Dialect
from tests.providers.anthropic.world import assistant, body, mark, text, thinking, tool, tool_result, tool_use, user

DIALECT: Dialect = AnthropicMessages()


def parse(request: Any) -> Asked:
    return DIALECT.parse(json.dumps(request).encode())


def refusal(request: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequestError) as refused:
        parse(request)
    return str(refused.value), refused.value.param


def test_the_smallest_request_has_every_default() -> None:
    asked = parse({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]})
    assert (asked.model, asked.max_tokens, asked.stream, asked.choices) == ("m", 5, False, 1)
    assert (asked.sampling, asked.stop, asked.ignored) == (Sampling(), (), ())
    (message,) = asked.chat.messages
    assert (message.role, message.content, message.path) == ("user", "hi", "messages[0]")


def test_every_field_that_is_acted_on() -> None:
    asked = parse(
        body(temperature=0.5, top_k=3, top_p=0.9, stop_sequences=["END"], stream=True, system="Be brief.", max_tokens=9)
    )
    assert asked.sampling == Sampling(temperature=0.5, top_k=3, top_p=0.9)
    assert (asked.stop, asked.stream, asked.max_tokens) == (("END",), True, 9)
    assert [message.role for message in asked.chat.messages] == ["system", "user"]
    assert asked.body["temperature"] == 0.5


def test_a_conversation_with_tools() -> None:
    asked = parse(
        body(
            [
                user("weather in Paris and Rome?"),
                assistant(
                    thinking("two calls"), "Let me see.", tool_use("t1", input={"city": "Paris"}), tool_use("t2")
                ),
                user(tool_result("t1", "sunny"), tool_result("t2", [text("rain"), text("wind")]), "and tomorrow?"),
                {"role": "system", "content": "Answer in French."},
                user("please"),
            ],
            system=[text("You are"), text("a guide.")],
            tools=[tool("t", **mark())],
        )
    )
    assert [(message.role, message.content, message.path) for message in asked.chat.messages] == [
        ("system", "You are\na guide.", "system"),
        ("user", "weather in Paris and Rome?", "messages[0]"),
        ("assistant", "Let me see.", "messages[1]"),
        ("tool", "sunny", "messages[2].content[0]"),
        ("tool", "rain\nwind", "messages[2].content[1]"),
        ("user", "and tomorrow?", "messages[2]"),
        ("system", "Answer in French.", "messages[3]"),
        ("user", "please", "messages[4]"),
    ]
    answer = asked.chat.messages[2].fields
    assert answer["reasoning_content"] == "two calls"
    assert answer["tool_calls"][0] == {
        "id": "t1",
        "type": "function",
        "function": {"name": "t", "arguments": {"city": "Paris"}},
    }
    assert asked.chat.messages[3].fields == {"tool_call_id": "t1"}
    (shown,) = asked.chat.tools
    assert shown == {
        "type": "function",
        "function": {"name": "t", "description": "does t", "parameters": {"type": "object"}},
    }


def test_tool_choice_none_hides_the_tools_from_the_model_not_from_the_books() -> None:
    asked = parse(body(tools=[tool("t")], tool_choice={"type": "none"}))
    assert asked.chat.tools == ()
    assert asked.body["tools"]


def test_documents_and_search_results_in_plain_text_are_read() -> None:
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "sky: blue"}}
    found = {"type": "search_result", "source": "u", "title": "t", "content": [text("grass: green")]}
    assert parse(body([user(document, found, "so?")])).chat.messages[0].content == "sky: blue\ngrass: green\nso?"


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}


@pytest.mark.parametrize(
    ("change", "param", "says"),
    [
        ({"max_tokens": None}, "max_tokens", "required"),
        ({"max_tokens": -1}, "max_tokens", "at least 0"),
        ({"max_tokens": "5"}, "max_tokens", "an integer"),
        ({"model": None}, "model", "required"),
        ({"model": ""}, "model", "name of a model"),
        ({"temperature": 1.1}, "temperature", "between 0 and 1"),
        ({"temperature": -0.1}, "temperature", "between 0 and 1"),
        ({"top_p": 2}, "top_p", "between 0 and 1"),
        ({"top_k": -1}, "top_k", "at least 0"),
        ({"top_k": 1.5}, "top_k", "an integer"),
        ({"stop_sequences": "x"}, "stop_sequences", "an array"),
        ({"stop_sequences": ["x", "  \n"]}, "stop_sequences[1]", "white space"),
        ({"stop_sequences": ["x"] * 257}, "stop_sequences", "up to 256"),
        ({"messages": None}, "messages", "required"),
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "user, assistant or system"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "empty"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content", "empty"),
        ({"messages": [user("x"), assistant("The answer is (")]}, "messages", "prefill"),
        ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type", "required"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text", "required"),
        ({"messages": [user({"type": "text", "text": 5})]}, "messages[0].content[0].text", "a string"),
        ({"messages": [user(IMAGE)]}, "messages[0].content[0].type", "reads text only"),
        ({"messages": [user("x"), assistant(tool_use("t")), user(tool_result("t", [IMAGE]))]},
         "messages[2].content[0].content[0].type", "reads text only"),
        ({"messages": [user({"type": "document", "source": {"type": "base64", "data": "x"}})]},
         "messages[0].content[0].source.type", "plain text"),
        ({"messages": [user({"type": "document", "source": {"type": "text", "data": "x"},
                             "citations": {"enabled": True}})]}, "messages[0].content[0].citations", "Citations"),
        ({"messages": [user({"type": "container_upload"})]}, "messages[0].content[0].type", "container_upload"),
        ({"messages": [user(thinking())]}, "messages[0].content[0].type", "thinking"),
        ({"messages": [user("x"), assistant(tool_use("t1")), user("no result")]}, "messages[1].content[0]", "t1"),
        ({"messages": [user("x"), assistant(tool_use("t1")), user(tool_result("t2"))]}, "messages[1].content[0]", "t1"),
        ({"messages": [user(tool_result("t9"))]}, "messages[0].content[0].tool_use_id", "t9"),
        ({"messages": [user("x"), assistant({"type": "tool_use", "id": "a", "name": "b"}), user("x")]},
         "messages[1].content[0].input", "required"),
        ({"system": [IMAGE]}, "system[0].type", "reads text only"),
        ({"system": 5}, "system", "a string"),
        ({"tools": [{"type": "web_search_20260318", "name": "web_search"}]}, "tools[0].type", "web_search_20260318"),
        ({"tools": [{"name": "t"}]}, "tools[0].input_schema", "required"),
        ({"tools": [tool("no spaces allowed")]}, "tools[0].name", "letters"),
        ({"tools": [tool("a"), tool("b"), tool("a")]}, "tools[2].name", "`tools[0]`"),
        ({"messages": [user("x"), assistant(tool_use("a")), user(tool_result("a")), assistant(tool_use("a")),
                       user(tool_result("a"))]}, "messages[3].content[0].id", "`messages[1].content[0]`"),
        ({"messages": [user("x"), assistant(tool_use("a"), tool_use("a")), user(tool_result("a"))]},
         "messages[1].content[1].id", "unique"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "auto or none"),
        ({"tool_choice": {"type": "tool", "name": "t"}}, "tool_choice", "auto or none"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type", "sometimes"),
        ({"tool_choice": "auto"}, "tool_choice", "an object"),
        ({"thinking": {"type": "enabled", "budget_tokens": 512}, "max_tokens": 4000}, "thinking.budget_tokens", "1024"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "max_tokens": 2000},
         "thinking.budget_tokens", "less"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "1024"),
        ({"thinking": {"type": "deeply"}}, "thinking.type", "deeply"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort", "huge"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format", "not supported"),
        ({"mcp_servers": [{"url": "u"}]}, "mcp_servers", "custom tools"),
        ({"speed": "slow"}, "speed", "slow"),
        ({"service_tier": "flex"}, "service_tier", "auto or standard_only"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id", "a string"),
        ({"diagnostics": {"previous_message_id": 5}}, "diagnostics.previous_message_id", "a string"),
        ({"cache_control": {"type": "x"}}, "cache_control", "ephemeral"),
        ({"messages": [user(*(text(str(n), marked=True) for n in range(5)))]},
         "messages[0].content[4].cache_control", "up to 4"),
        ({"max_tokens": 0, "stream": True}, "stream", "`max_tokens` 0"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(change: dict[str, Any], param: str, says: str) -> None:
    message, where = refusal({name: value for name, value in {**body(), **change}.items() if value is not None})
    assert says in message
    assert where == param
    assert message.count(". ") == 0  # one sentence


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff", b'{"model": "\\ud800"}', b"[" * 100_000])
def test_a_body_that_is_none_is_an_error_and_no_crash(raw: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        DIALECT.parse(raw)


def test_deep_nesting_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"properties": schema}
    assert "nested" in refusal(body(tools=[tool("t", input_schema=schema)]))[0]
    deep: Any = "x"
    for _ in range(200):
        deep = [deep]
    for content in (tool_use("t", input={"a": deep}), tool_result("t", {"a": deep})):
        assert refusal(body([user("x"), assistant(content)]))


def test_what_has_no_effect_is_accepted_and_named() -> None:
    asked = parse(
        body(
            thinking={"type": "adaptive"},
            output_config={"effort": "low"},
            metadata={"user_id": "u"},
            service_tier="auto",
            speed="fast",
            context_management={"edits": []},
            container="c",
            unheard_of=1,
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        )
    )
    assert set(asked.ignored) == {*WITHOUT_EFFECT, "unheard_of", "tool_choice.disable_parallel_tool_use"}
    assert set(Body.__struct_fields__) >= WITHOUT_EFFECT
    quiet = parse(body(cache_control={"type": "ephemeral"}, diagnostics={"previous_message_id": None}, metadata=None))
    assert quiet.ignored == ()


def test_a_prewarm_asks_for_no_tokens() -> None:
    assert parse(body(max_tokens=0)).max_tokens == 0


def test_counting_needs_no_limit() -> None:
    request = body(system="s", tools=[tool("t")], thinking={"type": "enabled", "budget_tokens": 2000})
    del request["max_tokens"]
    dialect = AnthropicMessages()
    asked = dialect.parse_count(json.dumps(request).encode())
    assert len(asked.chat.messages) == 2
    assert json.loads(dialect.count(14)) == {"input_tokens": 14}


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"x-api-key": "k"}, "k"),
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer  k "}, "k"),
        ({"x-api-key": "k", "authorization": "Bearer other"}, "k"),
        ({"authorization": "Basic k"}, None),
        ({}, None),
    ],
)
def test_where_the_key_is(headers: dict[str, str], key: str | None) -> None:
    assert DIALECT.key(headers, {}) == key


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors_have_the_api_s_shape(status: int, kind: str) -> None:
    assert json.loads(DIALECT.error(status, "No.", param="x", code="y")) == {
        "type": "error",
        "error": {"type": kind, "message": "No."},
        "request_id": None,
    }
    told = AnthropicMessages().error(status, "No.", request_id="req_1")
    assert json.loads(told)["request_id"] == "req_1"


def test_a_whole_answer_shows_every_count_and_zeros_as_zeros() -> None:
    """ollama/ollama#17130, vllm-project/vllm#45079, sgl-project/sglang PR#28801."""
    reply = DIALECT.reply(parse(body()), id="0" * 32, created=0.0)
    usage = Usage(Split(12, 0, {}, 12), 3)
    told = json.loads(reply.whole([Answer("hi", FinishReason.STOP)], usage, None))
    assert told["id"] == "msg_" + "0" * 32
    assert told["usage"] == {
        "input_tokens": 12,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"thinking_tokens": 0},
        "server_tool_use": {"web_fetch_requests": 0, "web_search_requests": 0},
        "service_tier": "standard",
        "inference_geo": "not_available",
        "speed": "standard",
    }


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(
    inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "content", "role", "id", "cache_control"]),
                                         inner, max_size=4), max_leaves=12))  # fmt: skip
def test_odd_bodies_are_refused_or_served_but_never_crash(odd: Any) -> None:
    for field in ("messages", "system", "tools", "tool_choice", "cache_control", "thinking", "diagnostics"):
        request = body(**{field: odd}) if field != "messages" else {**body(), "messages": odd}
        with suppress(InvalidRequestError):
            parse(request)
