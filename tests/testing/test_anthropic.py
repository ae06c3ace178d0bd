"""Anthropic's own SDK against the emulator."""

from __future__ import annotations

import anthropic
import pytest

from kvledger.testing.handle import Script, ScriptedCall
from tests.testing.conftest import LONG, TOOL, World

MODEL = "claude-sonnet-5.5"
MARKED = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
TOOLS = [{"name": "weather", "input_schema": TOOL}]


def ask(world: World, *texts: str, **fields):
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    options = {"model": MODEL, "system": MARKED, "max_tokens": 100, **fields}
    return world.anthropic().messages.create(messages=messages, **options)


def test_what_was_written_is_read(world):
    first = ask(world, "Hello?")
    written = first.usage.cache_creation_input_tokens
    assert written > 2000
    assert first.usage.cache_creation.ephemeral_5m_input_tokens == written
    assert first.usage.cache_read_input_tokens == 0
    second = ask(world, "Hello?", first.content[0].text, "And now?")
    assert second.usage.cache_read_input_tokens == written
    assert second.usage.cache_creation_input_tokens == 0
    assert (first.stop_reason, first.model) == ("end_turn", MODEL)


def test_a_marked_document_has_the_same_size_whatever_is_asked_of_it(world):
    def about(question: str):
        content = [*MARKED, {"type": "text", "text": question}]
        return world.anthropic().messages.create(
            model=MODEL, max_tokens=9, messages=[{"role": "user", "content": content}]
        )

    first, second = about("Why?"), about("How many rules are there, and who wrote the first of them?")
    assert first.usage.cache_creation_input_tokens == second.usage.cache_read_input_tokens > 2000


def test_the_split_is_known_when_a_stream_starts(world):
    world.emulator.answer(Script(text="one two three"))
    events = list(ask(world, "Count.", stream=True))
    start = events[0]
    assert start.type == "message_start"
    assert start.message.usage.cache_creation_input_tokens > 2000
    assert start.message.usage.input_tokens > 0
    delta = next(event for event in events if event.type == "message_delta")
    assert delta.usage.cache_creation_input_tokens == start.message.usage.cache_creation_input_tokens
    assert delta.usage.output_tokens == world.emulator.receipts[0].usage.output
    with world.anthropic().messages.stream(
        model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "x"}]
    ) as stream:
        assert stream.get_final_message().content[0].text


def test_the_local_models_split_is_the_physical_reuse(world):
    fields = {"model": "stand-in"}
    ask(world, "Hello?", **fields)
    start = next(iter(ask(world, "Hello?", stream=True, **fields)))
    receipt = world.emulator.receipts[-1]
    assert start.message.usage.cache_read_input_tokens == receipt.reused_tokens
    assert receipt.reused_tokens == receipt.usage.split.prompt_tokens - 1
    assert receipt.bill.total is None


def test_tool_use(world):
    world.emulator.answer(Script(tool_calls=[ScriptedCall("weather", {"city": "Bern"})]))
    answer = ask(world, "Weather?", tools=TOOLS)
    (block,) = answer.content
    assert (answer.stop_reason, block.name, block.input) == ("tool_use", "weather", {"city": "Bern"})
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Rain."}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]
    second = world.anthropic().messages.create(model=MODEL, system=MARKED, max_tokens=9, messages=messages, tools=TOOLS)
    assert second.usage.cache_read_input_tokens == answer.usage.cache_creation_input_tokens


def test_tool_use_streamed(world):
    world.emulator.answer(Script(text="Well.", tool_calls=[ScriptedCall("weather", {"city": "Bern"})]))
    messages = [{"role": "user", "content": "Weather?"}]
    with world.anthropic().messages.stream(model=MODEL, max_tokens=99, messages=messages, tools=TOOLS) as stream:
        text, call = stream.get_final_message().content
    assert (text.text, call.input) == ("Well.", {"city": "Bern"})


def test_stop_reasons(world):
    world.emulator.answer(*[Script(text="one two three")] * 2)
    stopped = ask(world, "u", stop_sequences=["two"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "two")
    assert ask(world, "u", max_tokens=1).stop_reason == "max_tokens"


def test_a_prewarm_writes_and_says_nothing(world):
    warm = ask(world, "u", max_tokens=0)
    assert warm.content == []
    assert warm.stop_reason == "max_tokens"
    assert warm.usage.output_tokens == 0
    assert ask(world, "u").usage.cache_read_input_tokens == warm.usage.cache_creation_input_tokens > 0


def test_an_entry_lives_five_minutes_from_its_last_use(world):
    ask(world, "u")
    for _ in range(2):
        world.emulator.advance(300)
        assert ask(world, "u").usage.cache_read_input_tokens > 0
    world.emulator.assert_nothing_expired()
    world.emulator.advance(301)
    assert ask(world, "u").usage.cache_read_input_tokens == 0
    with pytest.raises(AssertionError, match="expired"):
        world.emulator.assert_nothing_expired()


def test_diagnostics_name_what_changed(world):
    first = ask(world, "u")
    other = [{**MARKED[0], "text": "Today is Monday. " + LONG}]
    second = ask(world, "u", system=other, extra_body={"diagnostics": {"previous_message_id": first.id}})
    assert second.diagnostics.cache_miss_reason.type == "system_changed"


def test_count_tokens_is_the_prompt_of_the_usage(world):
    fields = {"model": MODEL, "system": MARKED, "messages": [{"role": "user", "content": "Hello?"}]}
    counted = world.anthropic().messages.count_tokens(**fields)
    usage = world.anthropic().messages.create(max_tokens=9, **fields).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_creation_input_tokens


class TestErrors:
    def test_an_unknown_model(self, world):
        with pytest.raises(anthropic.NotFoundError, match="claude-sonnet-5") as caught:
            ask(world, "u", model="claude-sonet-5.5")
        assert caught.value.body["error"]["type"] == "not_found_error"

    def test_a_short_lifetime_before_a_long_one(self, world):
        long = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]
        with pytest.raises(anthropic.BadRequestError) as caught:
            world.anthropic().messages.create(
                model=MODEL, max_tokens=9, system=MARKED, messages=[{"role": "user", "content": long}]
            )
        assert caught.value.body["error"]["type"] == "invalid_request_error"
        assert world.emulator.receipts == ()

    def test_overloaded_is_retried(self, world):
        world.emulator.answer(Script(error=529, retry_after=0), Script(text="ok"))
        messages = [{"role": "user", "content": "u"}]
        answer = world.anthropic(retries=1).messages.create(model=MODEL, max_tokens=9, messages=messages)
        assert answer.content[0].text == "ok"

    def test_overloaded_has_its_own_type(self, world):
        world.emulator.answer(Script(error=529))
        with pytest.raises(anthropic.APIStatusError) as caught:
            ask(world, "u")
        assert caught.value.status_code == 529
        assert caught.value.body["error"]["type"] == "overloaded_error"

    def test_models(self, world):
        page = world.anthropic().models.list()
        assert [model.id for model in page] == ["stand-in"]
        assert world.anthropic().models.retrieve("stand-in").display_name == "stand-in"
