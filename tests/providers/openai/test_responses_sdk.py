"""The Responses API through OpenAI's own client: items, events in order, conversations, diagnostics."""

from __future__ import annotations

import openai
import pytest
from openai.types.responses import Response

from kvledger.engine.request import FinishReason
from kvledger.providers.openai.conversations import Conversations
from tests.providers.openai.server import Server
from tests.providers.openai.world import message, words

TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Riga"}}</tool_call>'
STATIC = words(2000, "s")


def create(server: Server, input="hi", model="gpt-6-sol", **fields):
    return server.sdk().responses.create(model=model, input=input, **fields)


def strictly(response: Response) -> Response:
    """The SDK builds its objects without checking; this checks them."""
    return Response.model_validate(response.model_dump(warnings="error"), strict=True)


def test_whole():
    answer = strictly(create(Server("Hello there."), instructions="Be kind.", metadata={"a": "b"}, temperature=0.5))
    assert answer.id == f"resp_{1:032x}"
    assert (answer.object, answer.status, answer.model, answer.output_text) == (
        "response", "completed", "gpt-6-sol", "Hello there.",
    )  # fmt: skip
    (item,) = answer.output
    assert (item.type, item.role, item.status, item.id) == ("message", "assistant", "completed", f"msg_{1:032x}00")
    assert (answer.instructions, answer.metadata, answer.temperature) == ("Be kind.", {"a": "b"}, 0.5)
    assert (answer.error, answer.incomplete_details, answer.previous_response_id) == (None, None, None)
    assert (answer.tools, answer.tool_choice, answer.parallel_tool_calls) == ([], "auto", True)
    assert (answer.service_tier, answer.truncation, answer.text.format.type) == ("default", "disabled", "text")


def test_every_usage_field_over_two_turns():
    server = Server()
    start = message("developer", STATIC, mark={"ttl": "12h"}, kind="input_text")
    first = strictly(create(server, [start, {"role": "user", "content": words(500)}])).usage
    assert (first.input_tokens, first.output_tokens, first.total_tokens) == (2500, 7, 2507)
    assert first.input_tokens_details.cached_tokens == 0
    assert first.input_tokens_details.cache_write_tokens == 2500
    split = first.input_tokens_details.cache_write_tokens_details
    assert (split.ttl_12h_tokens, split.ttl_30m_tokens) == (2000, 500)
    assert first.output_tokens_details.reasoning_tokens == 0
    second = create(server, [start, {"role": "user", "content": "another"}]).usage.input_tokens_details
    assert (second.cached_tokens, second.cache_write_tokens) == (2000, 7)


def test_p25_a_known_zero_is_zero():
    """sglang#28801: zero hits are reported as null."""
    details = create(Server(), model="local-model").usage.input_tokens_details
    assert (details.cached_tokens, details.cache_write_tokens) == (0, 0)
    assert details.cache_write_tokens_details.ttl_30m_tokens == 0


def test_the_events_of_a_text():
    events = list(create(Server("Hello"), stream=True))
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].response.status == "in_progress"
    assert events[0].response.usage is None
    assert events[2].item.content == []
    assert "".join(event.delta for event in events[4:6]) == events[6].text == "Hello"
    last = strictly(events[-1].response)
    assert (last.status, last.output_text, last.usage.output_tokens) == ("completed", "Hello", 7)
    assert {event.item_id for event in events[3:8]} == {last.output[0].id}


def test_the_events_of_calls_between_texts():
    events = list(create(Server(f"First. {CALL} Then."), stream=True, tools=[TOOL]))
    assert [event.type.removeprefix("response.") for event in events if "delta" not in event.type] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    added = [event for event in events if event.type == "response.output_item.added"]
    assert [event.output_index for event in added] == [0, 1, 2]
    assert [item.id for item in events[-1].response.output] == [event.item.id for event in added]
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert (done.name, done.arguments, done.output_index) == ("weather", '{"city": "Riga"}', 1)


def test_the_sdk_accumulates_the_stream_to_the_whole_answer():
    with Server(f"See. {CALL}").sdk().responses.stream(model="gpt-6-sol", input="hi", tools=[TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == "See. "
    assert final.output[1].arguments == '{"city": "Riga"}'


def test_tool_calls_out_and_back_in():
    server = Server(CALL)
    answer = strictly(create(server, tools=[TOOL]))
    (call,) = answer.output
    assert (call.type, call.name, call.call_id, call.status) == ("function_call", "weather", "call_1", "completed")
    server.text = "It rains."
    result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    create(
        server,
        [{"role": "user", "content": "hi"}, *[item.model_dump() for item in answer.output], result],
        tools=[TOOL],
    )
    user, said, tool = server.asked[1].chat.messages
    assert (user.role, said.role, tool.role) == ("user", "assistant", "tool")
    assert said.fields["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Riga"}}}
    ]
    assert (tool.content, tool.fields) == ("rain", {"tool_call_id": "call_1"})
    assert server.asked[1].chat.tools[0]["function"]["name"] == "weather"


def test_a_text_and_the_calls_after_it_are_one_message_to_the_template():
    server = Server()
    items = [
        {"role": "user", "content": "hi"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "See."}]},
        *({"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "no json"} for n in range(2)),
        {"type": "reasoning", "id": "rs_1", "summary": []},
        *({"type": "function_call_output", "call_id": f"c{n}", "output": [{"type": "input_text", "text": "x"}]}
          for n in range(2)),
    ]  # fmt: skip
    create(server, items)
    messages = server.asked[0].chat.messages
    assert [message.role for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1].content == "See."
    assert [call["function"]["arguments"] for call in messages[1].fields["tool_calls"]] == ["no json"] * 2


def test_length_is_incomplete():
    for stream in (False, True):
        answer = create(Server("Hel", FinishReason.LENGTH), max_output_tokens=3, stream=stream)
        if stream:
            *_, last = answer
            assert last.type == "response.incomplete"
            answer = last.response
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert answer.output[0].status == "incomplete"
        assert answer.max_output_tokens == 3


def test_an_empty_answer_has_an_empty_message():
    (whole,) = create(Server("")).output
    *_, last = create(Server(""), stream=True)
    assert whole.content[0].text == last.response.output[0].content[0].text == ""


def test_a_prewarm_writes_the_cache_and_has_no_output():
    server, fields = Server(), {"prompt_cache_options": {"prewarm": True, "ttl": "12h"}}
    for stream in (False, True):
        answer = create(server, STATIC, stream=stream, **fields)
        if stream:
            *_, last = answer
            answer = last.response
        assert (answer.status, answer.output, answer.usage.output_tokens) == ("completed", [], 0)
    assert server.asked[0].max_tokens == 0
    assert server.accounts[0].split.written == {"12h": 2000}
    assert create(server, STATIC).usage.input_tokens_details.cached_tokens == 2000
    assert answer.prompt_cache_options.ttl == "12h"


def test_a_broken_stream_ends_with_response_failed():
    *_, last = create(Server(breaks_after=3), stream=True)
    assert last.type == "response.failed"
    assert (last.response.status, last.response.error.code, last.response.error.message) == (
        "failed", "server_error", "It broke.",
    )  # fmt: skip


def test_logprobs():
    answer = strictly(create(Server("Hi"), top_logprobs=1, include=["message.output_text.logprobs"]))
    (entry,) = answer.output[0].content[0].logprobs
    assert (entry.token, entry.bytes, entry.top_logprobs[0].bytes) == ("H", [72], [104])
    deltas = [event for event in create(Server("Hi"), top_logprobs=1, stream=True) if "delta" in event.type]
    assert deltas[0].logprobs[0].top_logprobs[0].token == "h"


class TestConversations:
    def test_going_on_from_a_previous_response(self):
        server = Server("Fine.")
        first = create(server, "How are you?", instructions="Be kind.")
        second = create(server, "And now?", previous_response_id=first.id, instructions="Be brief.")
        create(server, "And then?", previous_response_id=second.id)
        assert second.previous_response_id == first.id
        assert [(m.role, m.content) for m in server.asked[1].chat.messages] == [
            ("system", "Be brief."), ("user", "How are you?"), ("assistant", "Fine."), ("user", "And now?"),
        ]  # fmt: skip
        assert [m.content for m in server.asked[2].chat.messages] == [
            "How are you?", "Fine.", "And now?", "Fine.", "And then?",
        ]  # fmt: skip
        assert [m.path for m in server.asked[1].chat.messages][1:] == [
            "previous_response.input[0]", "previous_response.input[1]", "input[0]",
        ]  # fmt: skip

    def test_the_cache_sees_the_whole_conversation(self):
        server = Server()
        first = create(server, STATIC)
        usage = create(server, "more", previous_response_id=first.id).usage
        assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (2010, 2000)

    def test_an_error_in_a_new_item_has_the_clients_own_path(self):
        server = Server()
        first = create(server)
        with pytest.raises(openai.BadRequestError) as caught:
            create(server, [{"role": "robot", "content": "x"}], previous_response_id=first.id)
        assert caught.value.param == "input[0].role"

    def test_store_false_is_not_stored(self):
        server = Server()
        first = create(server, store=False)
        assert first.store is False
        with pytest.raises(openai.BadRequestError, match="not found") as caught:
            create(server, previous_response_id=first.id)
        assert caught.value.param == "previous_response_id"

    def test_tenants_do_not_see_each_others(self):
        server = Server()
        first = create(server)
        with pytest.raises(openai.BadRequestError, match="not found"):
            server.sdk("other").responses.create(model="gpt-6-sol", input="hi", previous_response_id=first.id)

    def test_a_bounded_store_forgets_the_least_recently_used(self):
        server = Server(conversations=Conversations(max_bytes=4000))
        ids = [create(server).id for _ in range(2)]
        assert create(server, previous_response_id=ids[0])
        ids.append(create(server).id)
        kept = [server.conversations.get("k", id) is not None for id in ids]
        assert kept == [True, False, True]
        assert server.conversations._bytes <= 4000
        create(server, words(5000))
        assert len(server.conversations._stored) > 0


class TestDiagnostics:
    def ask(self, server: Server, id: str, input=STATIC, **fields):
        options = {"comparison_response_id": id, **fields.pop("options", {})}
        return create(server, input, prompt_cache_options=options, **fields)

    @pytest.mark.parametrize(
        ("fields", "reason"),
        [
            ({"model": "gpt-6-luna"}, "model_changed"),
            ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
            ({"tools": [TOOL]}, "tools_changed"),
            ({"parallel_tool_calls": False}, "tools_changed"),
            ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
            ({"text": {"verbosity": "high"}}, "verbosity_changed"),
            ({"service_tier": "flex"}, "service_tier_changed"),
            ({"input": "s!" + words(1500)}, "input_changed"),
            ({"instructions": "New."}, "input_changed"),
        ],
    )
    def test_each_reason(self, fields, reason):
        server = Server()
        first = create(server, STATIC)
        fields = dict(fields)
        input = fields.pop("input", STATIC)
        found = strictly(self.ask(server, first.id, input, **fields)).prompt_cache_diagnostics
        assert (found.type, found.reason) == ("cache_miss", reason)
        assert found.cache_missed_tokens >= 1500
        assert found.comparison_reusable_tokens >= 1500

    def test_another_conversation(self):
        server = Server()
        first = create(server, STATIC)
        found = self.ask(server, first.id, words(1500, "other")).prompt_cache_diagnostics
        assert (found.reason, found.cache_missed_tokens) == ("input_changed", 1500)
        assert found.comparison_reusable_tokens == 0

    def test_a_hit(self):
        server = Server()
        first = create(server, STATIC)
        again = self.ask(server, first.id, [{"role": "user", "content": STATIC}, {"role": "user", "content": "x"}])
        assert again.prompt_cache_diagnostics.type == "cache_hit"
        assert again.prompt_cache_options.comparison_response_id == first.id

    def test_the_compared_response_counts_and_not_the_nearest(self):
        server = Server()
        first = create(server, STATIC, prompt_cache_key="a")
        create(server, STATIC, prompt_cache_key="b", model="gpt-6-luna")
        found = self.ask(server, first.id, prompt_cache_key="b").prompt_cache_diagnostics
        assert found.reason == "prompt_cache_key_changed"

    def test_not_found_and_unavailable(self):
        server = Server()
        assert self.ask(server, "resp_none").prompt_cache_diagnostics.type == "comparison_response_not_found"
        first = create(server, STATIC)
        server.at += 3600
        assert self.ask(server, first.id).prompt_cache_diagnostics.type == "unavailable"  # it expired

    def test_nobody_asked(self):
        assert create(Server()).prompt_cache_diagnostics is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "x"}]}},
         "tool_choice.tools[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"mode": 1}}, "prompt_cache_options.mode"),
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ],
)  # fmt: skip
def test_what_is_refused_names_its_field(fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        Server().sdk().responses.create(**{"model": "gpt-6-sol", "input": "hi", **fields})
    assert caught.value.param == param
    assert caught.value.body["message"].endswith(".")


def test_input_may_be_missing_only_behind_a_previous_response():
    server = Server()
    with pytest.raises(openai.BadRequestError) as caught:
        server.sdk().responses.create(model="gpt-6-sol")
    assert caught.value.param == "input"
    first = create(server)
    assert server.sdk().responses.create(model="gpt-6-sol", previous_response_id=first.id).status == "completed"
