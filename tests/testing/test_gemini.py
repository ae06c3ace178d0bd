"""Google's own SDK against the emulator."""

from __future__ import annotations

import pytest
from google.genai import errors, types

from kvledger.testing.handle import Script, ScriptedCall
from tests.testing.conftest import LONG, World

MODEL = "gemini-2.5-flash"


def ask(world: World, *texts: str, model: str = MODEL, **config):
    contents = [
        types.Content(role=("user", "model")[i % 2], parts=[types.Part(text=text)]) for i, text in enumerate(texts)
    ]
    return world.gemini().models.generate_content(
        model=model, contents=contents, config=types.GenerateContentConfig(**config)
    )


def test_a_second_turn_reads_the_first(world):
    first = ask(world, "Hello?", system_instruction=LONG)
    assert not first.usage_metadata.cached_content_token_count
    second = ask(world, "Hello?", first.text, "And now?", system_instruction=LONG)
    usage = second.usage_metadata
    assert usage.cached_content_token_count > 2000
    assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count


def test_a_stream(world):
    world.emulator.answer(Script(text="one two three"))
    chunks = list(world.gemini().models.generate_content_stream(model=MODEL, contents=LONG))
    assert "".join(chunk.text or "" for chunk in chunks) == "one two three"
    assert chunks[-1].candidates[0].finish_reason == types.FinishReason.STOP
    assert chunks[-1].usage_metadata.candidates_token_count == world.emulator.receipts[0].usage.output


def test_a_function_call(world):
    world.emulator.answer(Script(tool_calls=[ScriptedCall("weather", {"city": "Bern"})]))
    schema = types.Schema(type=types.Type.OBJECT, properties={"city": types.Schema(type=types.Type.STRING)})
    tool = types.Tool(function_declarations=[types.FunctionDeclaration(name="weather", parameters=schema)])
    (call,) = ask(world, "Weather?", tools=[tool]).function_calls
    assert (call.name, call.args) == ("weather", {"city": "Bern"})


def test_a_cached_content_from_creation_to_the_bill_of_its_storage(world):
    client = world.gemini()
    cached = client.caches.create(
        model=MODEL, config=types.CreateCachedContentConfig(contents=[LONG], ttl="600s", display_name="rules")
    )
    assert cached.usage_metadata.total_token_count > 2000
    usage = ask(world, "Hello?", cached_content=cached.name).usage_metadata
    assert abs(usage.cached_content_token_count - cached.usage_metadata.total_token_count) <= 5
    assert [each.name for each in client.caches.list()] == [cached.name]
    client.caches.update(name=cached.name, config=types.UpdateCachedContentConfig(ttl="3600s"))
    world.emulator.advance(1800)
    assert client.caches.get(name=cached.name).display_name == "rules"
    client.caches.delete(name=cached.name)
    with pytest.raises(errors.ClientError):
        client.caches.get(name=cached.name)
    stored = [receipt for receipt in world.emulator.receipts if receipt.api == "cachedContents"]
    tokens = cached.usage_metadata.total_token_count
    assert sum(receipt.usage.storage_token_seconds for receipt in stored) == tokens * 1800
    assert all(receipt.bill.total for receipt in stored)


def test_count_tokens_is_the_prompt_of_the_usage(world):
    counted = world.gemini().models.count_tokens(model=MODEL, contents=LONG)
    answer = world.gemini().models.generate_content(model=MODEL, contents=LONG)
    assert counted.total_tokens == answer.usage_metadata.prompt_token_count


def test_hits_are_dropped_where_the_switch_says_so():
    from kvledger.testing.emulator import Emulator  # noqa: PLC0415
    from kvledger.testing.handle import RunningEmulator  # noqa: PLC0415

    with RunningEmulator(Emulator.create(gemini_drop=1.0)) as running:
        world = World(running)
        ask(world, LONG)
        assert not ask(world, LONG).usage_metadata.cached_content_token_count
        assert running.receipts[1].account.breaks[0].reason.value == "dropped"
        with pytest.raises(AssertionError, match="dropped on purpose"):
            running.assert_reads(2)


class TestErrors:
    def test_an_unknown_model(self, world):
        with pytest.raises(errors.ClientError, match=r"gemini-2\.5-flash") as caught:
            ask(world, "u", model="gemini-2.5-flahs")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")

    def test_overload_is_retried(self, world):
        world.emulator.answer(Script(error=503), Script(text="ok"))
        answer = world.gemini(attempts=2).models.generate_content(model=MODEL, contents="u")
        assert answer.text == "ok"

    def test_a_cached_content_that_is_not_there(self, world):
        with pytest.raises(errors.ClientError) as caught:
            ask(world, "u", cached_content="cachedContents/nothing")
        assert caught.value.code == 403

    def test_models(self, world):
        assert [model.name for model in world.gemini().models.list()] == ["models/stand-in"]
        assert world.gemini().models.get(model=MODEL).name == f"models/{MODEL}"
