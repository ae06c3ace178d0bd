from __future__ import annotations

from kvledger.providers.deepseek.rules import DeepSeekRules
from tests.providers.letters import World, chat, reasons

MODEL = "deepseek-flash"
A = "a" * 200


def test_only_the_third_request_to_begin_alike_reads_it():
    """The example of the guide: A + B, then A + C misses and A is stored, then A + D hits A."""
    world = World(DeepSeekRules())
    assert reasons(world.ask(chat(MODEL, A, "bbb"))) == ["cold"]
    second = world.ask(chat(MODEL, A, "ccc"))
    assert second.split.read == 0
    assert reasons(second) == ["never_written", "messages_changed"]
    assert [found.tokens for found in second.breaks] == [200, 3]
    third = world.ask(chat(MODEL, A, "ddd"))
    assert (third.split.read, reasons(third)) == (200, ["messages_changed"])


def test_a_conversation_reads_up_to_the_end_of_the_input_before():
    world = World(DeepSeekRules())
    world.ask(chat(MODEL, A, "question"))
    second = world.ask(chat(MODEL, A, "question", "answer", "more"))
    assert (second.split.read, second.split.fresh, second.breaks) == (208, 10, ())
    third = world.ask(chat(MODEL, A, "question", "answer", "more", "yes", "go on"))
    assert third.split.read == 218


def test_a_unit_takes_seconds_to_build():
    world = World(DeepSeekRules())
    body = chat(MODEL, A)
    world.ask(body)
    soon = world.ask(body, after=4.9)
    assert (soon.split.read, reasons(soon)) == (0, ["not_yet_readable"])
    assert world.ask(body, after=0.1).split.read == 200


def test_each_user_id_has_a_cache_of_its_own():
    world = World(DeepSeekRules())
    world.ask(chat(MODEL, A, user_id="one"))
    other = world.ask(chat(MODEL, A, user_id="two"))
    assert (other.split.read, reasons(other), other.breaks[0].path) == (0, ["key_changed"], "user_id")
    assert world.ask(chat(MODEL, A, user_id="one")).split.read == 200
    inner = {"model": MODEL, "system": A, "messages": [{"role": "user", "content": "q"}]}
    world.ask({**inner, "metadata": {"user_id": "one"}}, api="messages")
    other = world.ask({**inner, "metadata": {"user_id": "two"}}, api="messages")
    assert (other.split.read, reasons(other)) == (0, ["key_changed"])


def test_an_unused_unit_is_gone_after_a_day():
    world = World(DeepSeekRules())
    body = chat(MODEL, A)
    world.ask(body)
    assert world.ask(body, after=86_400).split.read == 200
    gone = world.ask(body, after=86_401)
    assert (gone.split.read, reasons(gone)) == (0, ["expired"])
    assert world.ask(body).split.read == 200
