from __future__ import annotations

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.providers.kimi.rules import KimiRules
from tests.providers.letters import Letters, World, chat, reasons

K3 = "kimi-k3"


def options(ttl: str) -> dict[str, object]:
    return {"prompt_cache_options": {"mode": "implicit", "ttl": ttl}}


@pytest.mark.parametrize(("ttl", "seconds"), [(None, 300), ("5m", 300), ("1h", 3600)])
@pytest.mark.parametrize(("over", "alive"), [(0, True), (1, False)])
def test_the_lifetime_asked_for_to_the_second(ttl, seconds, over, alive):
    world = World(KimiRules())
    body = chat(K3, "s" * 100, **(options(ttl) if ttl else {}))
    first = world.ask(body)
    assert first.split.written == {ttl or "5m": 100}
    again = world.ask(body, after=seconds + over)
    assert again.split.read == (100 if alive else 0)
    assert reasons(again) == ([] if alive else ["expired"])


def test_the_lifetime_is_fixed_at_the_first_write_and_renewed_by_hits():
    world = World(KimiRules())
    world.ask(chat(K3, "s" * 100, **options("1h")))
    later = world.ask(chat(K3, "s" * 100, "u" * 10, **options("5m")), after=3600)
    assert (later.split.read, dict(later.split.written)) == (100, {"5m": 10})
    again = world.ask(chat(K3, "s" * 100, "u" * 10), after=3600)
    assert (again.split.read, reasons(again)) == (100, ["expired"])
    assert again.breaks[0].tokens == 10


def test_only_the_k3_class_pays_for_writes():
    assert World(KimiRules()).ask(chat("kimi-k3.1-pro", "s" * 100)).split.written == {"5m": 100}
    account = World(KimiRules()).ask(chat("kimi-k2.6", "s" * 100))
    assert (account.split.written, account.split.fresh) == ({}, 100)


def test_in_anthropics_format_the_root_mark_asks_for_writing():
    world = World(KimiRules())
    block = {"type": "text", "text": "s" * 100, "cache_control": {"type": "ephemeral"}}
    body = {"model": K3, "system": [block], "messages": [{"role": "user", "content": "q"}]}
    reading = world.ask(body, api="messages")
    assert (reading.split.written, reading.split.fresh) == ({}, 101)
    writing = world.ask({**body, "cache_control": {"type": "ephemeral", "ttl": "1h"}}, api="messages")
    assert (writing.split.read, writing.split.written) == (0, {"1h": 101})
    assert world.ask(body, api="messages").split.read == 101


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "prompt_cache_breakpoint": {}}]}]},
            "messages[0].content[0].prompt_cache_breakpoint",
        ),
        ({"prompt_cache_options": {"ttl": "30m"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": "5m"}, "prompt_cache_options"),
    ],
)
def test_refused(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        KimiRules().prompt({**chat(K3, "s"), **fields}, scope="", counter=Letters())
    assert caught.value.param == param
