from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.providers.qwen.rules import QwenRules
from tests.providers.letters import Letters, World, chat, reasons

MODEL = "qwen3-max"


def marked(*texts: str, marks: tuple[int, ...] = (-1,), ttl: str | None = None) -> dict[str, Any]:
    """One user message with a block per text, marks on some."""
    content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    for mark in marks:
        content[mark]["cache_control"] = {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    return {"model": MODEL, "messages": [{"role": "user", "content": content}]}


def test_a_mark_writes_up_to_itself_and_the_next_reads_it():
    world = World(QwenRules())
    first = world.ask(marked("a" * 1200, "b" * 50, marks=(0,)))
    assert (first.split.read, first.split.written, first.split.fresh) == (0, {"5m": 1200}, 50)
    assert first.certain
    second = world.ask(marked("a" * 1200, "c" * 300, "d" * 10, marks=(1,)))
    assert (second.split.read, second.split.written, second.split.fresh) == (1200, {"5m": 300}, 10)
    assert second.rule == "qwen/explicit"


@pytest.mark.parametrize(("length", "written"), [(1023, {}), (1024, {"5m": 1024})])
def test_the_minimum_of_explicit_caching(length, written):
    account = World(QwenRules()).ask(marked("a" * length))
    assert account.split.written == written
    assert reasons(account) == (["cold"] if written else ["below_minimum"])


@pytest.mark.parametrize(("month", "minimum"), [(9, 256), (10, 1024)])
def test_the_minimum_of_implicit_caching_changed_in_october(month, minimum):
    at = datetime(2026, month, 15, tzinfo=UTC).timestamp()
    for length, read in ((minimum - 1, 0), (minimum, minimum)):
        world = World(QwenRules(), at=at)
        world.ask(chat(MODEL, "s" * length))
        assert world.ask(chat(MODEL, "s" * length)).split.read == read


@pytest.mark.parametrize(("between", "read"), [(18, True), (19, False)])
def test_a_mark_looks_at_twenty_blocks_its_own_included(between, read):
    world = World(QwenRules())
    world.ask(marked("a" * 1200))
    account = world.ask(marked("a" * 1200, *["x"] * between, "end"))
    assert bool(account.split.read) == read
    assert reasons(account) == ([] if read else ["lookback_exceeded"])


@pytest.mark.parametrize(("gap", "alive"), [(300, True), (301, False)])
def test_five_minutes_renewed_by_hits(gap, alive):
    world = World(QwenRules())
    world.ask(marked("a" * 1200))
    world.ask(marked("a" * 1200), after=299)
    account = world.ask(marked("a" * 1200), after=gap)
    assert account.split.read == (1200 if alive else 0)
    assert reasons(account) == ([] if alive else ["expired"])


def test_an_entry_that_is_read_is_renewed_and_not_written_again():
    world = World(QwenRules())
    world.ask(marked("a" * 1200))
    prompt = world.rules.prompt(marked("a" * 1200), scope="s", counter=Letters())
    verdict = world.rules.judge(prompt, world.entries, world.at + 60)
    assert verdict.written == ()
    assert [entry.expires_at for entry in verdict.renewed] == [world.at + 360]


def test_one_request_uses_one_mode():
    world = World(QwenRules())
    world.ask(marked("a" * 1200))
    assert world.ask(marked("a" * 1200, marks=())).split.read == 0
    assert world.ask(marked("a" * 1200, marks=())).split.read == 1200
    assert world.ask(marked("a" * 1200)).split.read == 1200


def test_a_difference_before_the_mark_is_named():
    world = World(QwenRules())
    world.ask(marked("a" * 1200, "b" * 50))
    account = world.ask(marked("a" * 1199 + "z", "b" * 50))
    assert reasons(account) == ["messages_changed"]
    assert (account.breaks[0].path, account.breaks[0].offset) == ("messages[0].content[0]", 1199)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (marked(*"abcde", marks=(0, 1, 2, 3, 4)), "messages[0].content[4].cache_control"),
        (marked("a", ttl="1h"), "messages[0].content[0].cache_control.ttl"),
        (
            {"model": MODEL, "messages": [{"role": "user", "content": [{"text": "a", "cache_control": "yes"}]}]},
            "messages[0].content[0].cache_control",
        ),
    ],
)
def test_refused(body, param):
    with pytest.raises(InvalidRequestError) as caught:
        QwenRules().prompt(body, scope="", counter=Letters())
    assert caught.value.param == param
