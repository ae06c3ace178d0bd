"""Google's own SDK, with its typed objects, against the dialect, the rulebook and the caches."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from google.genai import errors, types

from kvledger.engine.request import FinishReason
from kvledger.providers.dialect import ToolCall
from tests.providers.gemini.server import MODEL, Script, Server, body
from tests.providers.letters import NOON

LONG = "x" * 3000


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def client(server: Server) -> Any:
    return server.client()


def config(**fields: Any) -> types.GenerateContentConfig:
    return types.GenerateContentConfig(**fields)


def test_generate_and_every_field_of_usage(server, client):
    first = client.models.generate_content(model=MODEL, contents=LONG)
    assert first.text == "Hello, world"
    assert (first.model_version, first.response_id) == (MODEL, "0" * 32)
    candidate = first.candidates[0]
    assert (candidate.index, candidate.finish_reason, candidate.content.role) == (0, types.FinishReason.STOP, "model")
    usage = first.usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count) == (3000, 12, 3012)
    assert usage.cached_content_token_count is None
    assert usage.thoughts_token_count is None
    assert usage.cache_tokens_details is None
    assert [(d.modality.value, d.token_count) for d in usage.prompt_tokens_details] == [("TEXT", 3000)]
    server.script = Script(reasoning=5)
    usage = client.models.generate_content(model=MODEL, contents=LONG).usage_metadata
    assert usage.cached_content_token_count == 3000
    assert [(d.modality.value, d.token_count) for d in usage.cache_tokens_details] == [("TEXT", 3000)]
    assert (usage.thoughts_token_count, usage.candidates_token_count, usage.total_token_count) == (5, 12, 3017)


def test_stream_repeats_usage_and_ends_with_the_final_one(server, client):
    client.models.generate_content(model=MODEL, contents=LONG)
    chunks = list(client.models.generate_content_stream(model=MODEL, contents=LONG))
    assert "".join(chunk.text or "" for chunk in chunks) == "Hello, world"
    assert [chunk.usage_metadata.cached_content_token_count for chunk in chunks] == [3000] * 3
    assert [chunk.usage_metadata.candidates_token_count for chunk in chunks] == [None, None, 12]
    assert [chunk.candidates[0].finish_reason for chunk in chunks] == [None, None, types.FinishReason.STOP]
    assert chunks[-1].usage_metadata.total_token_count == 3012
    assert str(server.requests[-1].url).endswith(f"/models/{MODEL}:streamGenerateContent?alt=sse")


def test_a_stream_without_sse_is_one_array(server):
    url = f"http://gemini.test/v1beta/models/{MODEL}:streamGenerateContent?key=secret"
    answer = server.handle(httpx.Request("POST", url, content=body()))
    chunks = json.loads(answer.read())
    assert answer.headers["content-type"] == "application/json"
    texts = [c["candidates"][0]["content"]["parts"][0]["text"] for c in chunks if "candidates" in c]
    assert texts == ["Hello", ", world", ""]
    server.script = Script(breaks_after=1)
    broken = json.loads(server.handle(httpx.Request("POST", url, content=body())).read())
    assert broken[-1]["error"]["status"] == "INTERNAL"


def test_a_stream_that_breaks_raises_the_servers_error(server, client):
    server.script = Script(breaks_after=1)
    stream = client.models.generate_content_stream(model=MODEL, contents="hi")
    assert next(stream).text == "Hello"
    with pytest.raises(errors.ServerError) as caught:
        next(stream)
    assert (caught.value.code, caught.value.status) == (500, "INTERNAL")


@pytest.mark.parametrize("streamed", [False, True])
def test_several_candidates(client, streamed):
    asks = client.models.generate_content_stream if streamed else lambda **f: [client.models.generate_content(**f)]
    chunks = list(asks(model=MODEL, contents="hi", config=config(candidate_count=3)))
    texts = ["", "", ""]
    for chunk in chunks:
        for candidate in chunk.candidates:
            texts[candidate.index] += candidate.content.parts[0].text
    assert texts == ["Hello, world"] * 3
    assert [c.finish_reason.value for c in chunks[-1].candidates] == ["STOP"] * 3
    assert chunks[-1].usage_metadata.candidates_token_count == 36


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs(client, streamed):
    asks = client.models.generate_content_stream if streamed else lambda **f: [client.models.generate_content(**f)]
    chunks = list(asks(model=MODEL, contents="hi", config=config(response_logprobs=True, logprobs=2)))
    results = [r for c in chunks if (r := c.candidates[0].logprobs_result)]
    chosen = [entry for result in results for entry in result.chosen_candidates]
    assert [(entry.token, entry.log_probability) for entry in chosen] == [("Hello", -0.5), (", world", -0.5)]
    top = [entry.candidates for result in results for entry in result.top_candidates]
    assert [[c.token for c in each] for each in top] == [["Hello0", "Hello1"], [", world0", ", world1"]]
    if not streamed:
        assert chunks[0].candidates[0].avg_logprobs == -0.5


@pytest.mark.parametrize(
    ("reason", "word"), [(FinishReason.LENGTH, "MAX_TOKENS"), (FinishReason.CAPACITY, "MAX_TOKENS")]
)
def test_an_output_that_was_cut(server, client, reason, word):
    server.script = Script(reason=reason)
    answer = client.models.generate_content(model=MODEL, contents="hi", config=config(max_output_tokens=2))
    assert answer.candidates[0].finish_reason.value == word
    assert server.asked[-1].max_tokens == 2


TOOL = types.Tool(
    function_declarations=[
        types.FunctionDeclaration(
            name="weather",
            description="The weather",
            parameters=types.Schema(type="OBJECT", properties={"city": types.Schema(type="STRING")}, required=["city"]),
        )
    ]
)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_call_and_its_answer(server, client, streamed):
    server.script = Script(pieces=(), calls=(ToolCall("call1", "weather", '{"city": "Rome"}'),))
    if streamed:
        chunks = list(client.models.generate_content_stream(model=MODEL, contents="hi", config=config(tools=[TOOL])))
        called = next(c for c in chunks if c.function_calls)
        assert chunks[-1].candidates[0].finish_reason is types.FinishReason.STOP
    else:
        called = client.models.generate_content(model=MODEL, contents="hi", config=config(tools=[TOOL]))
    (call,) = called.function_calls
    assert (call.id, call.name, call.args) == ("call1", "weather", {"city": "Rome"})
    assert server.asked[-1].chat.tools == (
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"type": "string"}},
                    "required": ["city"],
                },
            },
        },
    )
    server.script = Script()
    response = types.Part.from_function_response(name="weather", response={"sky": "blue"})
    response.function_response.id = "call1"
    turns = [types.UserContent("hi"), called.candidates[0].content, types.UserContent([response])]
    client.models.generate_content(model=MODEL, contents=turns, config=config(tools=[TOOL]))
    messages = server.asked[-1].chat.messages
    assert [(m.role, m.content, m.path) for m in messages] == [
        ("user", "hi", "contents[0]"),
        ("assistant", "", "contents[1]"),
        ("tool", '{"sky":"blue"}', "contents[2].parts[0].functionResponse"),
    ]
    assert messages[1].fields["tool_calls"] == [
        {"id": "call1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    ]
    assert messages[2].fields == {"tool_call_id": "call1", "name": "weather"}


def test_a_call_with_broken_arguments_is_told_as_google_tells_it(server, client):
    server.script = Script(calls=(ToolCall("c", "weather", "{city"),))
    answer = client.models.generate_content(model=MODEL, contents="hi", config=config(tools=[TOOL]))
    assert answer.function_calls is None
    assert answer.candidates[0].finish_reason is types.FinishReason.MALFORMED_FUNCTION_CALL
    url = f"http://gemini.test/v1/models/{MODEL}:generateContent?key=secret"
    raw = json.loads(server.handle(httpx.Request("POST", url, content=body())).read())
    assert "weather" in raw["candidates"][0]["finishMessage"]  # which the SDK does not show


def test_every_setting_reaches_the_sampler(server, client):
    settings = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "max_output_tokens": 9, "stop_sequences": ["END"], "system_instruction": "Be brief.",
        "thinking_config": types.ThinkingConfig(thinking_budget=0),
    }  # fmt: skip
    client.models.generate_content(model=MODEL, contents="hi", config=config(**settings))
    asked = server.asked[-1]
    sampling = asked.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 40, 7)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.logprobs) == (0.5, -0.5, None)
    assert (asked.max_tokens, asked.stop, asked.choices) == (9, ("END",), 1)
    assert asked.ignored == ("generationConfig.thinkingConfig",)
    assert [(m.role, m.content, m.path) for m in asked.chat.messages] == [
        ("system", "Be brief.", "systemInstruction"),
        ("user", "hi", "contents[0]"),
    ]


def test_an_error_names_its_field(client):
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model=MODEL, contents="hi", config=config(temperature=3))
    error = caught.value
    assert (error.code, error.status) == (400, "INVALID_ARGUMENT")
    assert "`temperature` must be between" in error.message
    (detail,) = error.details["error"]["details"]
    assert detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert detail["fieldViolations"][0]["field"] == "generationConfig.temperature"


def test_the_sdk_retries_what_it_should(server):
    server.script = Script(failures=[503, 429])
    retries = types.HttpRetryOptions(attempts=3, initial_delay=0.001, max_delay=0.002)
    answer = server.client(retry_options=retries).models.generate_content(model=MODEL, contents="hi")
    assert answer.text == "Hello, world"
    assert len(server.requests) == 3
    server.script = Script(failures=[429])
    with pytest.raises(errors.ClientError) as caught:
        server.client().models.generate_content(model=MODEL, contents="hi")
    assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")


def test_count_tokens(client):
    counted = client.models.count_tokens(model=MODEL, contents="hello")
    assert counted.total_tokens == 5
    assert counted.cached_content_token_count is None


def create(client: Any, **fields: Any) -> Any:
    fields = {"contents": LONG, "system_instruction": "Be brief.", "display_name": "book", **fields}
    return client.caches.create(model=MODEL, config=types.CreateCachedContentConfig(**fields))


def test_a_cached_content_from_creation_to_deletion(server, client):
    made = create(client, ttl="300s")
    noon = datetime.fromtimestamp(NOON, UTC)
    assert made.name == "cachedContents/c1"
    assert (made.model, made.display_name) == (f"models/{MODEL}", "book")
    assert (made.create_time, made.update_time, made.expire_time) == (noon, noon, noon + timedelta(seconds=300))
    assert made.usage_metadata.total_token_count == 3009
    assert client.caches.get(name=made.name) == made
    answer = client.models.generate_content(model=MODEL, contents="why?", config=config(cached_content=made.name))
    usage = answer.usage_metadata
    assert (usage.prompt_token_count, usage.cached_content_token_count) == (3013, 3009)
    assert [m.path for m in server.asked[-1].chat.messages] == [
        "cachedContent.systemInstruction",
        "cachedContent.contents[0]",
        "contents[0]",
    ]
    server.clock.advance(200)
    changed = client.caches.update(name=made.name, config=types.UpdateCachedContentConfig(ttl="600s"))
    assert changed.expire_time == noon + timedelta(seconds=800)
    assert (changed.create_time, changed.update_time) == (noon, noon + timedelta(seconds=200))
    until = noon + timedelta(hours=2)
    changed = client.caches.update(name=made.name, config=types.UpdateCachedContentConfig(expire_time=until))
    assert changed.expire_time == until
    client.caches.delete(name=made.name)
    with pytest.raises(errors.ClientError) as caught:
        client.caches.get(name=made.name)
    assert (caught.value.code, caught.value.status) == (403, "PERMISSION_DENIED")


def test_lists_page_by_page(client):
    names = [create(client).name for _ in range(5)]
    assert [content.name for content in client.caches.list(config={"page_size": 2})] == names
    assert len(client.caches.list(config={"page_size": 2}).page) == 2


def test_a_hit_does_not_renew(server, client):
    made = create(client)
    use = config(cached_content=made.name)
    server.clock.advance(3599)
    assert client.models.generate_content(model=MODEL, contents="a", config=use).text
    server.clock.advance(2)
    with pytest.raises(errors.ClientError) as caught:
        client.models.generate_content(model=MODEL, contents="a", config=use)
    assert caught.value.code == 403
    assert list(client.caches.list()) == []


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"system_instruction": "again"}, "sets `systemInstruction`"),
        ({"tools": [TOOL]}, "sets `tools`"),
        ({"tool_config": {"function_calling_config": {"mode": "AUTO"}}}, "sets `toolConfig`"),
    ],
)
def test_what_is_cached_must_not_be_sent_again(client, fields, says):
    """567-labs/instructor#2580, litellm#17304: clients that send it again get 400."""
    made = create(client)
    with pytest.raises(errors.ClientError, match=says) as caught:
        client.models.generate_content(model=MODEL, contents="a", config=config(cached_content=made.name, **fields))
    assert caught.value.code == 400


def test_a_cached_content_belongs_to_its_model(client):
    made = create(client)
    with pytest.raises(errors.ClientError, match="must be the same"):
        client.models.generate_content(model="gemini-2.5-pro", contents="a", config=config(cached_content=made.name))


def test_too_small_to_cache(client):
    with pytest.raises(errors.ClientError, match="total_token_count=2047, min_total_token_count=2048"):
        create(client, contents="x" * 2038)
    assert create(client, contents="x" * 2039).usage_metadata.total_token_count == 2048
