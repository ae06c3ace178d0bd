"""How far back a mark looks for what earlier requests wrote: 20 positions, its own being the first."""

from __future__ import annotations

import pytest

from kvledger.providers.anthropic.rules import AnthropicRules
from tests.providers.anthropic.world import LONG, assistant, blocks, body, day, text, tool_result, tool_use, user
from tests.providers.letters import World, reasons


@pytest.mark.parametrize(("added", "found"), [(18, True), (19, True), (20, False), (21, False)])
def test_a_mark_may_lie_19_positions_past_the_entry(added: int, found: bool) -> None:
    world = World(AnthropicRules())
    assert world.ask(blocks(10, 10)).split.written == {"5m": 1000}
    account = world.ask(blocks(10 + added, 10 + added))
    assert account.split.read == (1000 if found else 0)
    assert account.split.written_tokens == 100 * (10 + added) - account.split.read
    assert reasons(account) == ([] if found else ["lookback_exceeded"])


def test_the_documented_vector() -> None:
    world = World(AnthropicRules())
    assert world.ask(blocks(10, 10)).split.read == 0
    assert world.ask(blocks(15, 15)).split.read == 1000
    missed = world.ask(blocks(35, 35))
    assert (missed.split.read, missed.split.written) == (0, {"5m": 3500})
    (why,) = missed.breaks
    assert (why.reason.value, why.tokens, why.path) == ("lookback_exceeded", 1500, None)
    assert "messages[0].content[14]" in why.detail
    assert "position 21" in why.detail


def test_a_second_mark_at_the_old_place_finds_it() -> None:
    world = World(AnthropicRules())
    world.ask(blocks(15, 15))
    account = world.ask(blocks(35, 15, 35))
    assert (account.split.read, account.split.written, account.breaks) == (1500, {"5m": 2000}, ())


def test_the_walk_finds_entries_not_equal_text() -> None:
    world = World(AnthropicRules())
    world.ask(blocks(12, 12))
    account = world.ask(blocks(8, 8))  # the same text, but nothing was written at block 8
    assert account.split.read == 0
    assert [(each.reason.value, each.tokens) for each in account.breaks] == [("never_written", 800)]


def test_a_mark_on_what_changes_never_reads() -> None:
    """anthropics/claude-code#96101, and the trap of a static prefix before one changing message."""
    world = World(AnthropicRules())
    for number in range(3):
        account = world.ask(body([user(text(f"{number} o'clock", marked=True))], system=LONG))
        assert account.split.read == 0
        assert account.split.written_tokens == account.split.prompt_tokens
    (why,) = account.breaks
    assert (why.reason.value, why.path, why.offset) == ("messages_changed", "messages[0].content[0]", 0)
    assert (why.before, why.after) == ("1 o'clock", "2 o'clock")


def agent(calls: int) -> dict:
    """A turn with that many tool calls and their results, behind a marked start."""
    ids = [f"toolu_{number}" for number in range(calls)]
    results = [tool_result(id) for id in ids]
    results[-1] |= {"cache_control": {"type": "ephemeral"}}
    started = user(text(LONG, marked=True))
    return body([started, assistant(*map(tool_use, ids)), user(*results)])


@pytest.mark.parametrize(
    ("platform", "on", "read"),
    [
        ("claude-api", "2026-09-01", 600),
        ("claude-api", "2026-08-31", 0),
        ("foundry", "2026-11-12", 0),
        ("bedrock", "2026-11-12", 0),
    ],
)
def test_runs_of_tool_blocks_are_one_position_since_september(platform: str, on: str, read: int) -> None:
    world = World(AnthropicRules(platform), at=day(on))
    world.ask(body([user(text(LONG, marked=True))]))
    request = agent(30)
    del request["messages"][0]["content"][0]["cache_control"]  # so that only the last mark looks
    account = world.ask(request)
    assert account.split.read == read
    assert account.certain == (platform != "bedrock")  # "about 20 blocks" is all that Bedrock says


@pytest.mark.parametrize(("added", "found"), [(9, True), (10, False)])
def test_look_back_counts_across_tools_system_and_messages(added: int, found: bool) -> None:
    world = World(AnthropicRules())
    tools = [{"name": f"t{number}", "input_schema": {"note": "n" * 100}} for number in range(10)]
    tools[-1] |= {"cache_control": {"type": "ephemeral"}}
    written = world.ask(body(tools=tools)).split.written_tokens
    del tools[-1]["cache_control"]
    many = [*(text("m") for _ in range(added - 1)), text("m", marked=True)]
    account = world.ask(body([user(*many)], tools=tools, system=[text("s") for _ in range(10)]))
    assert account.split.read == (written if found else 0)
