"""OpenAI's own SDK against the emulator: both APIs, whole and streamed, every usage field through its typed objects."""

from __future__ import annotations

import openai
import pytest

from kvledger.testing.handle import Script, ScriptedCall
from tests.testing.conftest import LONG, TOOL, World

OLD, NEW = "gpt-5.5", "gpt-5.6"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": TOOL}}]
CALL = Script(text="Let me see.", tool_calls=[ScriptedCall("weather", {"city": "Bern"})])


def chat(world: World, *texts: str, model: str = OLD, **fields):
    roles = ("system", "user", "assistant")
    messages = [
        {"role": "system" if i == 0 else roles[1 + (i - 1) % 2], "content": text} for i, text in enumerate(texts)
    ]
    return world.openai().chat.completions.create(model=model, messages=messages, **fields)


class TestChat:
    def test_a_second_turn_reads_the_first_in_steps_of_128(self, world):
        first = chat(world, LONG, "Hello?")
        assert first.model == OLD
        assert first.usage.prompt_tokens_details.cached_tokens == 0
        second = chat(world, LONG, "Hello?", first.choices[0].message.content, "And now?")
        read = second.usage.prompt_tokens_details.cached_tokens
        assert read % 128 == 0
        assert first.usage.prompt_tokens - 128 < read <= first.usage.prompt_tokens
        world.emulator.assert_reads(2, at_least=0.9)

    def test_a_model_with_breakpoints_reports_its_writes(self, world):
        first = chat(world, LONG, "Hello?", model=NEW)
        details = first.usage.prompt_tokens_details
        assert details.cached_tokens == 0
        assert details.cache_write_tokens > 2000
        second = chat(world, LONG, "Hello?", first.choices[0].message.content, "And now?", model=NEW)
        assert second.usage.prompt_tokens_details.cached_tokens == details.cache_write_tokens

    def test_a_stream_has_the_same_text_and_usage(self, world):
        world.emulator.answer(Script(text="one two three"), Script(text="one two three"))
        whole = chat(world, LONG, "Count.")
        chunks = list(chat(world, LONG, "Count.", stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content == "one two three"
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 1024

    @pytest.mark.parametrize("streamed", [False, True])
    def test_tool_calls(self, world, streamed):
        world.emulator.answer(CALL)
        answer = chat(world, "Help.", "Weather in Bern?", tools=TOOLS, stream=streamed)
        if streamed:
            deltas = [chunk.choices[0] for chunk in answer]
            calls = [call for choice in deltas for call in choice.delta.tool_calls or []]
            assert calls[0].function.name == "weather"
            assert "".join(call.function.arguments or "" for call in calls) == '{"city": "Bern"}'
            assert deltas[-1].finish_reason == "tool_calls"
            return
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Let me see."
        assert choice.message.tool_calls[0].function.arguments == '{"city": "Bern"}'

    def test_a_chat_goes_on_behind_a_tool_call(self, world):
        world.emulator.answer(CALL)
        messages = [{"role": "system", "content": LONG}, {"role": "user", "content": "Weather?"}]
        client = world.openai()
        first = client.chat.completions.create(model=OLD, messages=messages, tools=TOOLS)
        message = first.choices[0].message.model_dump(exclude_none=True)
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Rain."}
        second = client.chat.completions.create(model=OLD, messages=[*messages, message, result], tools=TOOLS)
        assert 2048 <= second.usage.prompt_tokens_details.cached_tokens <= first.usage.prompt_tokens
        world.emulator.assert_no_volatile_prefix()

    def test_without_tools_a_call_is_text(self, world):
        world.emulator.answer(CALL)
        assert "<tool_call>" in chat(world, "Help.", "Weather?").choices[0].message.content

    def test_scores_and_choices(self, world):
        answer = chat(world, "Help.", "Say.", n=2, logprobs=True, top_logprobs=2)
        assert len(answer.choices) == 2
        assert all(len(choice.logprobs.content) for choice in answer.choices)
        assert len(world.emulator.receipts) == 1

    def test_stop_and_length(self, world):
        world.emulator.answer(Script(text="one two three"), Script(text="one two three"))
        assert chat(world, "s", "u", stop=["two"]).choices[0].message.content == "one "
        assert chat(world, "s", "u", max_tokens=1).choices[0].finish_reason == "length"

    def test_another_providers_model_in_openais_format(self, world):
        first = chat(world, LONG, "Hello?", model="deepseek-chat")
        world.emulator.advance(60)  # an entry takes a while to build there
        second = chat(world, LONG, "Hello?", first.choices[0].message.content, "More?", model="deepseek-chat")
        assert second.usage.prompt_tokens_details.cached_tokens > 1000
        assert [receipt.provider for receipt in world.emulator.receipts] == ["deepseek", "deepseek"]


class TestResponses:
    def test_it_goes_on_from_the_previous_response(self, world):
        client = world.openai()
        first = client.responses.create(model=NEW, instructions=LONG, input="Hello?")
        second = client.responses.create(model=NEW, instructions=LONG, input="And now?", previous_response_id=first.id)
        assert second.usage.input_tokens > first.usage.input_tokens
        written = first.usage.input_tokens_details.cache_write_tokens
        assert second.usage.input_tokens_details.cached_tokens == written > 2000
        assert second.previous_response_id == first.id

    def test_a_stream(self, world):
        world.emulator.answer(Script(text="one two"))
        events = list(world.openai().responses.create(model=NEW, input=LONG, stream=True))
        assert events[0].type == "response.created"
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "one two"
        done = events[-1]
        assert done.type == "response.completed"
        assert done.response.usage.input_tokens_details.cache_write_tokens > 1000
        assert [event.sequence_number for event in events] == list(range(len(events)))

    def test_tool_calls(self, world):
        world.emulator.answer(CALL)
        tools = [{"type": "function", "name": "weather", "parameters": TOOL, "strict": False}]
        answer = world.openai().responses.create(model=NEW, input="Weather in Bern?", tools=tools)
        text, call = answer.output
        assert text.content[0].text == "Let me see."
        assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Bern"}')

    @pytest.mark.parametrize("streamed", [False, True])
    def test_what_is_stored_can_be_seen_and_deleted(self, world, streamed):
        client = world.openai()
        answer = client.responses.create(model=NEW, input="Hello?", stream=streamed)
        answer = list(answer)[-1].response if streamed else answer
        assert client.responses.retrieve(answer.id).output_text == answer.output_text
        client.responses.delete(answer.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(answer.id)
        with pytest.raises(openai.BadRequestError, match="not found"):
            client.responses.create(model=NEW, input="More?", previous_response_id=answer.id)


class TestErrors:
    def test_an_unknown_model_lists_near_names(self, world):
        with pytest.raises(openai.NotFoundError, match="gpt-5") as caught:
            chat(world, "s", "u", model="gtp-5.5")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")

    def test_a_model_of_another_format_says_where_it_is(self, world):
        with pytest.raises(openai.NotFoundError, match="POST /v1/messages"):
            chat(world, "s", "u", model="claude-sonnet-5.5")

    def test_a_retry_gets_the_answer(self, world):
        world.emulator.answer(Script(error=429, retry_after=0), Script(error=500, retry_after=0), Script(text="ok"))
        messages = [{"role": "user", "content": "u"}]
        answer = world.openai(retries=2).chat.completions.create(model=OLD, messages=messages)
        assert answer.choices[0].message.content == "ok"
        assert len(world.emulator.receipts) == 1

    @pytest.mark.parametrize(("status", "error"), [(429, openai.RateLimitError), (500, openai.InternalServerError)])
    def test_errors_are_the_sdks_own(self, world, status, error):
        world.emulator.answer(Script(error=status))
        with pytest.raises(error, match="asked for by the test"):
            chat(world, "s", "u")

    def test_models(self, world):
        client = world.openai()
        assert [model.id for model in client.models.list()] == ["stand-in"]
        assert client.models.retrieve(OLD).id == OLD
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("no-such-model")
