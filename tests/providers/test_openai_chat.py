from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import InvalidRequestError
from kvledger.providers.openai.chat import WITHOUT_EFFECT, Body, parse

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def refused(raw: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse(raw)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return caught.value


ALLOWED_TYPES: dict[str, str] = {
    "model": "string",
    "messages": "array",
    "max_tokens": "integer",
    "max_completion_tokens": "integer",
    "n": "integer",
    "stop": "string array",
    "stream": "boolean",
    "stream_options": "object",
    "tools": "array",
    "tool_choice": "string object",
    "response_format": "object",
    "temperature": "number integer",
    "top_p": "number integer",
    "presence_penalty": "number integer",
    "frequency_penalty": "number integer",
    "logit_bias": "object",
    "logprobs": "boolean",
    "top_logprobs": "integer",
    "seed": "integer",
    "top_k": "integer",
    "min_p": "number integer",
    "repetition_penalty": "number integer",
    "ignore_eos": "boolean",
    "audio": "object",
    "function_call": "string object",
    "functions": "array",
    "modalities": "array",
    "moderation": "object",
    "web_search_options": "object",
    "metadata": "object",
    "parallel_tool_calls": "boolean",
    "prediction": "object",
    "prompt_cache_key": "string",
    "prompt_cache_options": "object",
    "prompt_cache_retention": "string",
    "reasoning_effort": "string",
    "safety_identifier": "string",
    "service_tier": "string",
    "store": "boolean",
    "user": "string",
    "verbosity": "string",
}
SAMPLES: dict[str, Any] = {"string": "x", "integer": 1, "number": 1.5, "boolean": True, "object": {}, "array": []}


def test_the_table_of_types_is_complete():
    assert set(ALLOWED_TYPES) == set(Body.__struct_fields__)


@pytest.mark.parametrize(
    ("field", "kind"),
    [(field, kind) for field, allowed in ALLOWED_TYPES.items() for kind in SAMPLES if kind not in allowed.split()],
)
def test_each_wrong_type_in_each_field_names_the_field(field, kind):
    error = refused(body(**{field: SAMPLES[kind]}))
    assert error.param == field
    assert f"`{field}` must be" in str(error)


@pytest.mark.parametrize("field", sorted(set(ALLOWED_TYPES) - {"model", "messages"}))
def test_null_is_the_default(field):
    assert replace(parse(body(**{field: None})), body={}) == replace(parse(body()), body={})


@pytest.mark.parametrize("field", ["model", "messages"])
def test_required_fields(field):
    document = json.loads(body())
    del document[field]
    assert refused(json.dumps(document).encode()).param == field
    assert refused(body(**{field: None})).param == field


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"messages": []}, "messages", "at least one message"),
        ({"max_tokens": 0}, "max_tokens", "at least 1 and fit 64 bits, not 0"),
        ({"max_tokens": -1}, "max_tokens", "not -1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "not 0"),
        ({"max_tokens": 1 << 63}, "max_tokens", "64 bits"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "only one"),
        ({"n": 0}, "n", "between 1 and 128"),
        ({"n": 129}, "n", "between 1 and 128"),
        ({"stop": ""}, "stop", "empty string"),
        ({"stop": ["a", ""]}, "stop", "empty string"),
        ({"stop": list("abcde")}, "stop", "up to 4"),
        ({"stop": ["a", 1]}, "stop[1]", "must be a string"),
        ({"temperature": -0.1}, "temperature", "between 0 and 2"),
        ({"temperature": 2.1}, "temperature", "between 0 and 2"),
        ({"top_p": 1.1}, "top_p", "between 0 and 1"),
        ({"min_p": -1}, "min_p", "between 0 and 1"),
        ({"top_k": -2}, "top_k", "at least -1"),
        ({"presence_penalty": 3}, "presence_penalty", "between -2 and 2"),
        ({"frequency_penalty": -3}, "frequency_penalty", "between -2 and 2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "between 0.1 and 10"),
        ({"seed": 1 << 63}, "seed", "64 bits"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "not a token id"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "not a token id"),
        ({"logit_bias": {"²": 1}}, "logit_bias", "not a token id"),
        ({"logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
        ({"logit_bias": {"1": "a"}}, "logit_bias", "must be a number"),
        ({"top_logprobs": 2}, "top_logprobs", "needs `logprobs`"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "between 0 and 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "needs `stream`"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "boolean"),
        ({"response_format": {"type": "json_object"}}, "response_format", "`json_object` is not supported"),
        ({"response_format": {}}, "response_format.type", "required"),
        ({"tool_choice": "required"}, "tool_choice", "not supported"),
        ({"tool_choice": {"type": "function"}}, "tool_choice", "not supported"),
        ({"functions": []}, "functions", "use `tools`"),
        ({"function_call": {"name": "f"}}, "function_call", "not supported"),
        ({"modalities": ["text", "audio"]}, "modalities", "not supported"),
        ({"audio": {"voice": "x"}}, "audio", "not supported"),
        ({"web_search_options": {}}, "web_search_options", "not supported"),
        ({"tools": [1]}, "tools[0]", "must be an object"),
        ({"tools": [TOOL, {"type": "custom"}]}, "tools[1].type", "`custom`"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "required"),
        ({"metadata": {"a": 1}}, "metadata", "must be a string"),
    ],
)
def test_refused_values(fields, param, says):
    error = refused(body(**fields))
    assert error.param == param
    assert says in str(error)


@pytest.mark.parametrize(
    ("message", "param", "says"),
    [
        ({"content": "x"}, "role", "required"),
        ({"role": "robot", "content": "x"}, "role", "not `robot`"),
        ({"role": "function", "name": "f", "content": "x"}, "role", "not `function`"),
        ({"role": "user"}, "content", "required"),
        ({"role": "user", "content": None}, "content", "only an assistant message"),
        ({"role": "assistant", "content": None}, "content", "only an assistant message"),
        ({"role": "user", "content": []}, "content", "at least one part"),
        ({"role": "user", "content": 1}, "content", "must be a string or an array or null"),
        ({"role": "user", "content": [1]}, "content[0]", "must be an object"),
        ({"role": "user", "content": [{"type": "text"}]}, "content[0].text", "required"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "content[0].text", "must be a string"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "content[0].type", "`image_url`"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "content[0].type", "`input_audio`"),
        ({"role": "tool", "content": "x"}, "tool_call_id", "required"),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, "tool_calls", "role assistant"),
        ({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
         "tool_calls[0].function.arguments", "required"),
        ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, "tool_calls[0].type", "`custom`"),
        ({"role": "assistant", "content": "x", "audio": {"id": "a"}}, "audio", "not supported"),
        ({"role": "assistant", "content": "x", "function_call": {}}, "function_call", "not supported"),
    ],
)  # fmt: skip
def test_refused_messages_name_their_path(message, param, says):
    error = refused(body(messages=[USER, message]))
    assert error.param == f"messages[1].{param}"
    assert says in str(error)


@pytest.mark.parametrize(
    ("raw", "param", "says"),
    [
        (b"", None, "not valid JSON"),
        (b"{", None, "not valid JSON"),
        (b"[]", None, "The request body must be an object, not an array"),
        (b"null", None, "not null"),
        (b'{"model":"\xff"}', None, "not valid UTF-8"),
        (b'{"model":"m","messages":[{"role":"user","content":"a\\ud800"}]}', "messages[0].content", "surrogate"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\udc00\\ud800"}]}', "messages[0].content", "surrogate"),
        (b'{"model":"m","messages":[],"stop":["\\ud800"]}', "stop[0]", "surrogate"),
        (b'{"model":"m","messages":[],"x":{"\\ud800":1}}', None, "surrogate"),
        (b'{"model":"m","messages":[],"temperature":NaN}', "temperature", "finite"),
        (b'{"model":"m","messages":[],"temperature":-Infinity}', "temperature", "finite"),
        (b'{"model":"m","messages":[],"temperature":1e999}', "temperature", "too large"),
        (b'{"model":"m","messages":[],"seed":' + b"9" * 5000 + b"}", "seed", "too large"),
        (b'{"model":"m","messages":[],"x":' + b"[" * 100_000, None, "nested too deeply"),
        (b'{"model":"m","messages":[],"x":' + b'{"a":' * 100_000, None, "nested too deeply"),
    ],
)
def test_broken_bodies(raw, param, says):
    error = refused(raw)
    assert error.param == param
    assert says in str(error)


def test_deep_tool_schema():
    schema: Any = {}
    for _ in range(150):
        schema = {"properties": schema}
    error = refused(body(tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}]))
    assert error.param == "tools[0]"
    assert "levels deep" in str(error)


MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(ALLOWED_TYPES)), JSON, max_size=4))
def test_any_json_in_any_field_is_served_or_refused_in_one_sentence(fields):
    raw = body(**fields)
    try:
        parse(raw)
    except InvalidRequestError:
        refused(raw)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(MESSAGE_FIELDS), JSON), max_size=3))
def test_any_json_in_messages_is_served_or_refused_in_one_sentence(messages):
    raw = body(messages=messages)
    try:
        parse(raw)
    except InvalidRequestError as error:
        assert (error.param or "").startswith("messages")  # noqa: PT017 - most examples are refused, not all
        refused(raw)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused_in_one_sentence(raw):
    refused(raw)


class TestAccepted:
    def test_roles_paths_and_fields(self):
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        chat = parse(
            body(
                messages=[
                    {"role": "developer", "content": "rules"},
                    {"role": "user", "content": parts, "name": "n"},
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                    {"role": "tool", "tool_call_id": "c1", "content": "42"},
                ],
                tools=[TOOL],
            )
        ).chat
        assert [(m.role, m.content, m.path) for m in chat.messages] == [
            ("system", "rules", "messages[0]"),
            ("user", "a\nb", "messages[1]"),
            ("assistant", "", "messages[2]"),
            ("tool", "42", "messages[3]"),
        ]
        assert chat.messages[1].fields == {"name": "n"}
        assert chat.messages[2].fields["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
        assert chat.messages[3].fields == {"tool_call_id": "c1"}
        assert chat.tools == (TOOL,)

    def test_arguments_that_are_no_object_stay_text(self):
        call = {**CALL, "function": {"name": "f", "arguments": "[1"}}
        (message,) = parse(body(messages=[{"role": "assistant", "tool_calls": [call]}])).chat.messages
        assert message.fields["tool_calls"][0]["function"]["arguments"] == "[1"

    def test_a_message_as_the_sdk_dumps_it(self):
        dumped = {"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None,
                  "function_call": None, "tool_calls": None}  # fmt: skip
        assert parse(body(messages=[dumped])).chat.messages[0].content == "x"

    def test_tool_choice_none_hides_the_tools(self):
        assert parse(body(tools=[TOOL], tool_choice="none")).chat.tools == ()

    def test_keys_of_a_tool_keep_their_order(self):
        tool = {"function": {"strict": True, "parameters": {"z": 1, "a": 2}, "name": "f"}, "type": "function"}
        assert json.dumps(parse(body(tools=[tool])).chat.tools[0]) == json.dumps(tool)

    @pytest.mark.parametrize(
        ("fields", "name", "value"),
        [
            ({"stop": "a"}, "stop", ("a",)),
            ({"stop": []}, "stop", ()),
            ({"top_k": -1}, "top_k", 0),
            ({"logprobs": True}, "logprobs", 0),
            ({"logprobs": False}, "logprobs", None),
            ({"logprobs": True, "top_logprobs": 20}, "logprobs", 20),
            ({"temperature": 0}, "temperature", 0),
            ({"max_completion_tokens": 5}, "max_tokens", 5),
            ({"n": 128}, "choices", 128),
            ({"seed": -(1 << 63)}, "seed", -(1 << 63)),
            ({"response_format": {"type": "text"}}, "stream", False),
            ({"modalities": ["text"], "function_call": "auto", "tool_choice": "auto"}, "stream", False),
            ({"logit_bias": {"5": -100}}, "logit_bias", ((5, -100),)),
        ],
    )
    def test_values(self, fields, name, value):
        asked = parse(body(**fields))
        assert getattr(asked if hasattr(asked, name) else asked.sampling, name) == value

    def test_what_has_no_effect_is_told(self):
        asked = parse(body(user="me", metadata={"a": "b"}, thinking=True, store=None, unknown=None, seed=1))
        assert asked.ignored == ("user", "metadata", "thinking")

    def test_what_the_account_goes_by_is_not_called_ignored(self):
        assert parse(body(prompt_cache_key="k", prompt_cache_options={}, prompt_cache_retention="24h")).ignored == ()

    def test_fields_without_effect_are_known_fields(self):
        assert set(Body.__struct_fields__) >= WITHOUT_EFFECT


class TestDocumentation:
    """`docs/http.md` says what happens to every field; this keeps it from falling behind."""

    TEXT = (Path(__file__).parents[2] / "docs" / "http.md").read_text()

    @pytest.mark.parametrize("field", Body.__struct_fields__)
    def test_every_field_is_documented(self, field):
        assert f"`{field}`" in self.TEXT

    def test_ignored_fields_are_listed_as_ignored(self):
        section = self.TEXT.partition("## Fields that are ignored")[2].partition("\n## ")[0]
        listed = section.partition("Their types")[0]
        assert set(re.findall(r"`(\w+)`", listed)) == WITHOUT_EFFECT
