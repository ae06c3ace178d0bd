"""What is written for how long, by whom it can be read, and from when to when."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.providers.anthropic.rules import AnthropicRules
from kvledger.providers.entries import MemoryEntries
from tests.providers.anthropic.world import LONG, body, read, text, user
from tests.providers.letters import NOON, World, reasons


def three_levels(a: str, b: str, c: str, tail: str = "t" * 37) -> dict[str, Any]:
    return body([user(text(c, "5m"), tail)], system=[text(a, "1h"), text(b, "1h")])


def test_positions_a_b_and_c() -> None:
    """The golden case `anthropic-mixed-5m-1h`: 21,400 read, 4,500 for an hour, 1,500 for five minutes, 37 plain."""
    world = World(AnthropicRules())
    a, b, c = "a" * 21_400, "b" * 4_500, "c" * 1_500
    world.ask(body([user("x")], system=[text(a, "1h")]))
    account = world.ask(three_levels(a, b, c))
    assert (account.split.read, account.split.written, account.split.fresh) == (21_400, {"1h": 4_500, "5m": 1_500}, 37)
    again = world.ask(three_levels(a, b, c))
    assert (again.split.read, again.split.written, again.split.fresh) == (27_400, {}, 37)


def test_without_an_hour_mark_behind_the_hit_all_is_written_for_five_minutes() -> None:
    world = World(AnthropicRules())
    world.ask(body([user("x")], system=[text("a" * 1000, "1h")]))
    account = world.ask(body([user(text("c" * 500, "5m"))], system=[text("a" * 1000, "1h")]))
    assert account.split.written == {"5m": 500}


def test_cold_with_both_lifetimes() -> None:
    account = World(AnthropicRules()).ask(three_levels("a" * 1000, "b" * 1000, "c" * 1000))
    assert (account.split.read, account.split.written, account.split.fresh) == (0, {"1h": 2000, "5m": 1000}, 37)
    assert reasons(account) == ["cold"]


@pytest.mark.parametrize(("ttl", "seconds"), [("5m", 300), ("1h", 3600)])
def test_an_entry_lives_exactly_its_lifetime(ttl: str, seconds: int) -> None:
    request = body([user(text(LONG, ttl))])
    for after, found in ((seconds, True), (math.nextafter(seconds, math.inf) + 1e-3, False)):
        world = World(AnthropicRules())
        world.ask(request)
        account = world.ask(request, after=after)
        assert account.split.read == (600 if found else 0)
        assert reasons(account) == ([] if found else ["expired"])
    (why,) = account.breaks
    assert why.tokens == 600
    assert why.path is None
    assert ttl in why.detail
    assert str(seconds) in why.detail


def test_a_hit_renews_the_life() -> None:
    world, request = World(AnthropicRules()), body([user(text(LONG, marked=True))])
    world.ask(request)
    for _ in range(5):
        assert world.ask(request, after=299).split.read == 600
    assert world.ask(request, after=301).split.read == 0


def test_the_clock_starts_with_the_request_not_with_its_answer() -> None:
    """A stream of 4 minutes leaves about a minute of a 5 minute entry."""
    world, request = World(AnthropicRules(), begins=240.0), body([user(text(LONG, marked=True))])
    world.ask(request)
    assert world.ask(request, after=300).split.read == 600
    world = World(AnthropicRules(), begins=240.0)
    world.ask(request)
    assert reasons(world.ask(request, after=301)) == ["expired"]


def test_the_case_of_the_gap() -> None:
    """`claude-code-duplicate-line-and-gap`: 430 seconds against a lifetime of 300, and 51,000 tokens to write anew."""
    world = World(AnthropicRules())
    first = body([user("x" * 50_000)], **{"cache_control": {"type": "ephemeral"}})
    more = body([user("x" * 50_000), user("y" * 1_000)], **{"cache_control": {"type": "ephemeral"}})
    last = body([user("x" * 50_000), user("y" * 1_000), user("z" * 1_000)], **{"cache_control": {"type": "ephemeral"}})
    world.ask(first)
    assert world.ask(more, after=10).split.written == {"5m": 1_000}
    account = world.ask(last, after=430)
    assert account.split.written == {"5m": 52_000}
    (why,) = account.breaks
    assert (why.reason.value, why.tokens) == ("expired", 51_000)
    assert "430 seconds" in why.detail


def test_a_mark_renews_its_own_entry_though_a_later_one_is_read() -> None:
    world = World(AnthropicRules())
    system = [text(LONG, marked=True)]
    question = user(text("q" * 600, marked=True))
    for _ in range(3):
        world.ask(body([question], system=system), after=200)
    assert world.ask(body([user("other")], system=system), after=200).split.read == 600


def test_every_entry_that_a_mark_finds_is_renewed() -> None:
    rules, entries = AnthropicRules(), MemoryEntries()
    prompt = read(body([user(text("q" * 600, marked=True))], system=[text(LONG, "1h")]))
    first = rules.judge(prompt, entries, NOON)
    entries.put(first.written)
    again = rules.judge(prompt, entries, NOON + 100)
    assert [(entry.tokens, entry.expires_at - NOON) for entry in again.renewed] == [(600, 3700), (1200, 400)]
    assert again.written == ()


def test_a_new_mark_before_the_hit_writes_at_its_place_for_nothing() -> None:
    world = World(AnthropicRules())
    question = user(text("q" * 600, marked=True))
    world.ask(body([question], system=[text(LONG)]))
    account = world.ask(body([question], system=[text(LONG, marked=True)]))
    assert (account.split.read, account.split.written) == (1200, {})
    assert world.ask(body([user("other")], system=[text(LONG, marked=True)])).split.read == 600


def test_reading_needs_the_first_answer_to_have_begun() -> None:
    world, request = World(AnthropicRules(), begins=2.0), body([user(text(LONG, marked=True), "?")])
    first = world.ask(request)
    early = world.ask(request, after=1)
    assert (early.split.read, early.split.written) == (0, {"5m": 600})
    (why,) = early.breaks
    assert (why.reason.value, why.tokens) == ("not_yet_readable", 600)
    assert "began 1 seconds before this one" in why.detail
    assert first.split.written == {"5m": 600}
    assert world.ask(request, after=2).split.read == 600


def test_a_fan_out_in_parallel_makes_every_request_write() -> None:
    """Nothing has begun to answer when the last is sent, so ten prefixes are paid for; after the first event, one."""
    rules, entries = AnthropicRules(), MemoryEntries()
    prompts = [read(body([user(text(LONG, marked=True), f"question {number}")])) for number in range(10)]
    for prompt in prompts:
        verdict = rules.judge(prompt, entries, NOON)
        assert verdict.account.split.written == {"5m": 600}
        entries.put(replace(entry, readable_at=math.inf) for entry in verdict.written)
    later = rules.judge(prompts[0], entries, NOON + 1, earlier=prompts[1])
    assert reasons(later.account) == ["not_yet_readable"]
    assert "had not begun" in later.account.breaks[0].detail
    entries.put(replace(entry, readable_at=NOON + 2) for entry in verdict.written)
    assert rules.judge(prompts[3], entries, NOON + 2).account.split.read == 600


@pytest.mark.parametrize("scope", ["workspace-b", ""])
def test_workspaces_do_not_share(scope: str) -> None:
    world, request = World(AnthropicRules()), body([user(text(LONG, marked=True))])
    world.ask(request, scope="workspace-a")
    stranger = world.ask(request, scope=scope)
    assert (stranger.split.read, reasons(stranger)) == (0, ["cold"])
    assert stranger.breaks == World(AnthropicRules()).ask(request, scope=scope).breaks  # nothing tells that it exists
    assert world.ask(request, scope="workspace-a").split.read == 600


def test_the_operator_who_hands_in_both_is_told_of_the_workspace() -> None:
    rules, entries = AnthropicRules(), MemoryEntries()
    request = body([user(text(LONG, marked=True))])
    one, other = (read(request, scope=scope) for scope in ("a", "b"))
    entries.put(rules.judge(one, entries, NOON).written)
    account = rules.judge(other, entries, NOON, earlier=one).account
    assert [(each.reason.value, each.tokens) for each in account.breaks] == [("key_changed", 600)]


def test_platforms_do_not_share() -> None:
    entries, request = MemoryEntries(), body([user(text("x" * 5000, marked=True))])
    for platform in ("claude-api", "claude-platform-aws", "foundry", "google-cloud", "bedrock"):
        verdict = AnthropicRules(platform).judge(read(request, platform=platform), entries, NOON)
        assert verdict.account.split.read == 0
        entries.put(verdict.written)


def test_an_alias_and_a_dated_name_are_one_model() -> None:
    world = World(AnthropicRules())
    long = [user(text("x" * 1024, marked=True))]
    world.ask(body(long, model="claude-sonnet-4-5"))
    assert world.ask(body(long, model="claude-sonnet-4-5-20250929")).split.read == 1024


def test_a_prewarm_writes_like_any_request() -> None:
    world, system = World(AnthropicRules()), [text(LONG, marked=True)]
    warm = world.ask(body([user("placeholder")], max_tokens=0, system=system))
    assert warm.split.written == {"5m": 600}
    assert world.ask(body([user("real")], system=system)).split.read == 600


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking"),
        ({"thinking": {"type": "adaptive"}}, "thinking"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_config.format"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "t"}}, "tool_choice"),
    ],
)
def test_what_cannot_go_with_a_prewarm(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match="`max_tokens` 0") as refused:
        read(body(max_tokens=0, **fields))
    assert refused.value.param == param
    read(body(max_tokens=5, **fields))


def test_what_can_go_with_a_prewarm() -> None:
    read(
        body(max_tokens=0, thinking={"type": "disabled"}, tool_choice={"type": "none"}, output_config={"effort": "low"})
    )


def test_an_expired_start_and_a_new_question_are_told_apart() -> None:
    """Two breaks, and their tokens do not overlap."""
    world, system = World(AnthropicRules()), [text(LONG, marked=True)]
    world.ask(body([user(text("q" * 100, marked=True))], system=system))
    account = world.ask(body([user(text("r" * 100, marked=True))], system=system), after=301)
    assert [(each.reason.value, each.tokens) for each in account.breaks] == [
        ("messages_changed", 100),
        ("expired", 600),
    ]
