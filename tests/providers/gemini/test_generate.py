from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.engine.request import Sampling
from kvledger.errors import InvalidRequestError
from kvledger.providers.gemini.errors import error_body
from kvledger.providers.gemini.generate import CONFIG_FIELDS, FIELDS, GeminiGenerate
from tests.providers.gemini.server import body

DIALECT = GeminiGenerate()
DECLARED = {"functionDeclarations": [{"name": "f"}]}


def parse(**fields: Any) -> Any:
    return DIALECT.parse(body(**fields), model="models/m")


def refused(raw: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        DIALECT.parse(raw, model="m")
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
    return caught.value


def test_defaults():
    asked = DIALECT.parse(body(), model="models/m", stream=True)
    assert (asked.model, asked.choices, asked.max_tokens, asked.stop, asked.stream) == ("m", 1, None, (), True)
    assert asked.sampling == Sampling()
    assert asked.ignored == ()
    assert asked.body["model"] == "m"


def test_both_spellings_are_one():
    camel = {
        "systemInstruction": {"parts": [{"text": "s"}]},
        "generationConfig": {"maxOutputTokens": 5, "topK": 3, "stopSequences": ["x"], "thinkingConfig": {"a": 1}},
        "tools": [{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT", "my_key": 1}}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "safetySettings": [],
    }
    snake = {
        "system_instruction": {"parts": {"text": "s"}},
        "generation_config": {
            "max_output_tokens": 5,
            "top_k": 3.0,
            "stop_sequences": ["x"],
            "thinking_config": {"a": 1},
        },
        "tools": {"function_declarations": {"name": "f", "parameters": {"type": "OBJECT", "my_key": 1}}},
        "tool_config": {"function_calling_config": {"mode": "auto"}},
        "safety_settings": [],
    }
    one, other = parse(**camel), parse(**snake)
    assert (one.chat, one.sampling, one.max_tokens, one.stop, one.ignored) == (
        other.chat,
        other.sampling,
        other.max_tokens,
        other.stop,
        other.ignored,
    )
    assert one.ignored == ("safetySettings", "generationConfig.thinkingConfig")
    assert one.chat.tools[0]["function"]["parameters"] == {"type": "object", "my_key": 1}


def test_keys_inside_arguments_are_the_callers_own():
    call = {"functionCall": {"name": "f", "args": {"my_city": "Rome"}}}
    asked = DIALECT.parse(json.dumps({"contents": [{"role": "model", "parts": [call]}]}).encode(), model="m")
    assert asked.chat.messages[0].fields["tool_calls"][0]["function"]["arguments"] == {"my_city": "Rome"}


def test_pieces_of_one_turn_are_joined_and_thoughts_left_out():
    contents = [
        {"parts": [{"text": "one "}, {"text": "two"}]},
        {"role": "model", "parts": [{"text": "hm", "thought": True}, {"text": "an"}, {"text": "swer"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"a": 1}}}, {"text": "and?"}]},
    ]
    messages = DIALECT.parse(json.dumps({"contents": contents}).encode(), model="m").chat.messages
    assert [(m.role, m.content) for m in messages] == [
        ("user", "one two"),
        ("assistant", "answer"),
        ("tool", '{"a":1}'),
        ("user", "and?"),
    ]


@pytest.mark.parametrize("mode", ["NONE", "none"])
def test_no_calls_means_no_tools(mode):
    assert parse(tools=[DECLARED], toolConfig={"functionCallingConfig": {"mode": mode}}).chat.tools == ()
    assert len(parse(tools=[DECLARED]).chat.tools) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"contents": []}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": "hi"}, "contents"),
        ({"contents": ["hi"]}, "contents[0]"),
        ({"contents": [{"role": "assistant", "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"contents": [{"role": "user"}]}, "contents[0].parts"),
        ({"contents": [{"parts": []}]}, "contents[0].parts"),
        ({"contents": [{"parts": [{}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"parts": [{"text": "a", "inlineData": {}}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text"),
        ({"contents": [{"parts": [{"inline_data": {"data": ""}}]}]}, "contents[0].parts[0].inlineData"),
        ({"contents": [{"parts": [{"fileData": {}}]}]}, "contents[0].parts[0].fileData"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {}}]}]}, "contents[0].parts[0].functionCall.name"),
        ({"contents": [{"parts": [{"functionResponse": {"response": {}}}]}]},
         "contents[0].parts[0].functionResponse.name"),
        ({"systemInstruction": "be brief"}, "systemInstruction"),
        ({"systemInstruction": {"parts": [{"fileData": {}}]}}, "systemInstruction.parts[0].fileData"),
        ({"tools": [{"googleSearch": {}}]}, "tools[0].googleSearch"),
        ({"tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"toolConfig": {"functionCallingConfig": "ANY"}}, "toolConfig"),
        ({"generationConfig": {"temperature": 2.1}}, "generationConfig.temperature"),
        ({"generationConfig": {"temperature": "hot"}}, "generationConfig.temperature"),
        ({"generationConfig": {"topP": 1.1}}, "generationConfig.topP"),
        ({"generationConfig": {"topK": -1}}, "generationConfig.topK"),
        ({"generationConfig": {"candidateCount": 0}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"candidateCount": 9}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"stopSequences": list("abcdef")}}, "generationConfig.stopSequences"),
        ({"generationConfig": {"stopSequences": [""]}}, "generationConfig.stopSequences"),
        ({"generationConfig": {"seed": 2**31}}, "generationConfig.seed"),
        ({"generationConfig": {"logprobs": 2}}, "generationConfig.logprobs"),
        ({"generationConfig": {"logprobs": 21, "responseLogprobs": True}}, "generationConfig.logprobs"),
        ({"generationConfig": {"presencePenalty": 3}}, "generationConfig.presencePenalty"),
        ({"generationConfig": {"responseMimeType": "application/json"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"response_schema": {}}}, "generationConfig.responseSchema"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"topK": 1, "top_k": 1}}, "generationConfig.topK"),
        ({"generationConfig": []}, "generationConfig"),
        ({"cachedContent": 5}, "cachedContent"),
        ({"cachedContent": "cachedContents/x", "tools": [DECLARED]}, "tools"),
    ],
)  # fmt: skip
def test_refused(fields, param):
    assert refused(json.dumps({"contents": [{"parts": [{"text": "a"}]}], **fields}).encode()).param == param


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"{", b'{"contents":"\xff"}', b'{"a":' * 5000])
def test_broken_bodies(raw):
    refused(raw)


def test_deep_schemas_are_refused_by_name():
    schema: Any = {}
    for _ in range(150):
        schema = {"properties": schema}
    tools = [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]
    assert refused(body(tools=tools)).param == "tools"


def test_count_tokens_takes_a_whole_request_too():
    inner = json.loads(body(systemInstruction={"parts": [{"text": "s"}]}))
    asked = DIALECT.parse_count(json.dumps({"generateContentRequest": {**inner, "model": "models/m"}}).encode())
    assert (asked.model, len(asked.chat.messages)) == ("m", 2)
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        DIALECT.parse_count(json.dumps({**inner, "generateContentRequest": inner}).encode(), model="m")
    assert json.loads(DIALECT.count(9, cached=4)) == {
        "totalTokens": 9,
        "cachedContentTokenCount": 4,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 9}],
    }


@pytest.mark.parametrize(
    ("headers", "query", "key"),
    [
        ({"x-goog-api-key": "a"}, {"key": "b"}, "a"),
        ({}, {"key": "b"}, "b"),
        ({"authorization": "Bearer c"}, {}, "c"),
        ({"authorization": "Basic c"}, {}, None),
        ({"authorization": "Bearer "}, {}, None),
        ({}, {}, None),
    ],
)
def test_where_a_key_may_stand(headers, query, key):
    assert DIALECT.key(headers, query) == key


@pytest.mark.parametrize(
    ("status", "word"),
    [(400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"), (404, "NOT_FOUND"),
     (413, "INVALID_ARGUMENT"), (429, "RESOURCE_EXHAUSTED"), (500, "INTERNAL"), (502, "INTERNAL"),
     (503, "UNAVAILABLE"), (504, "DEADLINE_EXCEEDED")],
)  # fmt: skip
def test_googles_word_for_a_status(status, word):
    assert json.loads(error_body(status, "m")) == {"error": {"code": status, "message": "m", "status": word}}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = sorted({*FIELDS, "safetySettings", "system_instruction", "generation_config"} - {"model"})


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4),
    st.dictionaries(st.sampled_from(sorted(CONFIG_FIELDS)), JSON, max_size=3),
    st.lists(st.dictionaries(st.sampled_from(["role", "parts"]), JSON | st.lists(JSON)), max_size=3),
)
def test_any_json_anywhere_is_served_or_refused_in_one_sentence(fields, config, contents):
    document = {"contents": contents, "generationConfig": config, **fields}
    raw = json.dumps(document).encode()
    try:
        DIALECT.parse(raw, model="m")
    except InvalidRequestError:
        refused(raw)
