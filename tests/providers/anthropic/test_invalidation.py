"""Every row of the table of what loses what. A mark at the end of each level shows how far the cache still reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvledger.ledger.account import Account
from kvledger.providers.anthropic.rules import AnthropicRules
from tests.providers.anthropic.world import (
    LONG,
    assistant,
    body,
    mark,
    read,
    text,
    thinking,
    tool,
    tool_result,
    tool_use,
    user,
)
from tests.providers.letters import World, reasons

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}
SEARCH = {"type": "web_search_20260318", "name": "web_search"}
FETCH = {"type": "web_fetch_20260318", "name": "web_fetch"}


def document(enabled: bool) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": "The sky is blue."}
    return {"type": "document", "source": source, "citations": {"enabled": enabled}}


def request(model: str = "claude-sonnet-5") -> dict[str, Any]:
    return body(
        [user(text("m" * 2000, marked=True))],
        model=model,
        tools=[tool("a", description="d" * 1500), tool("b", **mark())],
        system=[text("s" * 2000, marked=True)],
    )


def levels(first: dict[str, Any], then: dict[str, Any]) -> tuple[str, Account]:
    """How far `then` reads of what `first` wrote: "nothing", "tools", "system" or "messages"."""
    world = World(AnthropicRules())
    whole = world.ask(first).split.written_tokens
    account = world.ask(then)
    read = account.split.read
    if not read:
        return "nothing", account
    messages = 2000
    ends = {whole: "messages", whole - messages: "system", whole - messages - 2000: "tools"}
    return ends[read], account


def changed(**fields: Any) -> dict[str, Any]:
    return {**request(), **fields}


def with_tools(*tools: dict[str, Any]) -> dict[str, Any]:
    return changed(tools=list(tools))


A, B = request()["tools"]


@pytest.mark.parametrize(
    ("then", "kept", "reason", "path"),
    [
        pytest.param(with_tools({**A, "name": "z"}, B), "nothing", "tools_changed", "tools[0]", id="tool name"),
        pytest.param(
            with_tools(A, {**B, "description": "new"}), "nothing", "tools_changed", "tools[1]", id="tool text"
        ),
        pytest.param(
            with_tools(A, {**B, "input_schema": {"type": "string"}}),
            "nothing",
            "tools_changed",
            "tools[1]",
            id="schema",
        ),
        pytest.param(with_tools({**B}, {**A}), "nothing", "tools_changed", "tools[0]", id="tool order"),
        pytest.param(
            with_tools(A, B, tool("c")), "tools", "tools_changed", "tools[2]", id="tool added behind the mark"
        ),
        pytest.param(with_tools(A), "nothing", "tools_changed", "tools[1]", id="tool removed"),
        pytest.param(changed(model="claude-opus-4-8"), "nothing", "model_changed", "model", id="model"),
        pytest.param(with_tools(A, B, SEARCH), "tools", "tools_changed", "tools[2]", id="web search on"),
        pytest.param(with_tools(SEARCH, A, B), "tools", "tools_changed", "tools[0]", id="web search on, in front"),
        pytest.param(with_tools(A, B, FETCH), "tools", "tools_changed", "tools[2]", id="web fetch on"),
        pytest.param(changed(speed="fast"), "tools", "settings_changed", "speed", id="speed"),
        pytest.param(
            changed(system=[text("S" + "s" * 1999, marked=True)]), "tools", "system_changed", "system[0]", id="system"
        ),
        pytest.param(
            changed(tool_choice={"type": "any"}), "system", "settings_changed", "tool_choice", id="tool choice"
        ),
        pytest.param(
            changed(tool_choice={"type": "auto", "disable_parallel_tool_use": True}),
            "system",
            "settings_changed",
            "tool_choice",
            id="parallel tool use",
        ),
        pytest.param(
            changed(messages=[*request()["messages"], assistant("ok"), user(PNG, text("and?", marked=True))]),
            "system",
            "settings_changed",
            "messages[2].content[0]",
            id="image added",
        ),
        pytest.param(
            changed(thinking={"type": "enabled", "budget_tokens": 2048}),
            "system",
            "settings_changed",
            "thinking",
            id="thinking on",
        ),
        pytest.param(
            changed(output_config={"effort": "low"}), "system", "settings_changed", "output_config.effort", id="effort"
        ),
        pytest.param(
            changed(output_config={"format": {"type": "json_schema", "schema": {}}}),
            "system",
            "settings_changed",
            "output_config.format",
            id="output format",
        ),
        pytest.param(
            changed(messages=[user(text("M" + "m" * 1999, marked=True))]),
            "system",
            "messages_changed",
            "messages[0].content[0]",
            id="message",
        ),
    ],
)
def test_what_a_change_loses(then: dict[str, Any], kept: str, reason: str, path: str) -> None:
    found, account = levels(request(), then)
    assert found == kept
    assert reasons(account)[0] == reason
    why = account.breaks[0]
    assert why.path == path
    assert why.detail
    assert account.split.read + why.tokens == tokens(4)


def tokens(parts: int) -> int:
    """Of the first so many parts of `request`: two tools, a system text, a message."""
    return sum(part.tokens for part in read(request()).parts[:parts])


def test_citations_lose_system_and_messages() -> None:
    plain, cited = (changed(messages=[user(text("m" * 2000), {**document(on), **mark()})]) for on in (False, True))
    world = World(AnthropicRules())
    whole = world.ask(plain).split
    account = world.ask(cited)
    assert account.split.read == tokens(2)
    assert [(each.reason.value, each.path) for each in account.breaks] == [
        ("messages_changed", "messages[0].content[1]"),
        ("settings_changed", "messages"),
    ]
    assert sum(each.tokens for each in account.breaks) == whole.written_tokens - account.split.read


@pytest.mark.parametrize(
    "same",
    [
        {"tool_choice": {"type": "auto"}},
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}},
        {"thinking": {"type": "disabled"}},
        {"output_config": {"effort": "high"}},
        {"output_config": {"effort": None}},
        {"speed": "standard"},
        {"temperature": 0.2},
        {"max_tokens": 7},
        {"metadata": {"user_id": "u"}},
        {"service_tier": "standard_only"},
        {"stop_sequences": ["x"]},
        {"stream": True},
        {"tools": [A, B, tool("later", defer_loading=True)]},
    ],
    ids=str,
)
def test_what_is_no_change(same: dict[str, Any]) -> None:
    found, account = levels(request(), changed(**same))
    assert (found, account.breaks) == ("messages", ())


@pytest.mark.parametrize(
    "change",
    [{"thinking": {"type": "adaptive"}}, {"output_config": {"effort": "low"}}],
    ids=str,
)
@pytest.mark.parametrize(("model", "kept"), [("claude-opus-5", "nothing"), ("claude-opus-4-8", "system")])
def test_models_that_render_configuration_first_lose_all(change: dict[str, Any], model: str, kept: str) -> None:
    found, account = levels(request(model), {**request(model), **change})
    assert found == kept
    assert reasons(account) == ["settings_changed"]
    assert account.certain == (kept == "system")  # which models these are is not documented


def test_display_of_thinking_is_not_part_of_the_prompt() -> None:
    shown, hidden = (changed(thinking={"type": "adaptive", "display": how}) for how in ("summarized", "omitted"))
    assert levels(shown, hidden)[0] == "messages"


def test_a_different_budget_loses_the_messages() -> None:
    one, two = (changed(thinking={"type": "enabled", "budget_tokens": n}) for n in (2048, 4096))
    found, account = levels(one, two)
    assert found == "system"
    (why,) = account.breaks
    assert ("4096" in why.after, "2048" in why.before) == (True, True)


def test_removing_an_image_loses_the_messages_and_is_uncertain() -> None:
    world = World(AnthropicRules())
    with_image = changed(messages=[user(text("m" * 2000, marked=True)), user(PNG, text("q", marked=True))])
    world.ask(with_image)
    account = world.ask(changed(messages=[*with_image["messages"][:1], user(text("q", marked=True))]))
    assert account.split.read == tokens(3)
    assert not account.certain


@pytest.mark.parametrize(
    ("model", "read"), [("claude-fable-5-1", 5000), ("claude-opus-5", 5000), ("claude-sonnet-4-5", 5102)]
)
def test_dropping_thinking_breaks_the_prefix_where_it_was_kept(model: str, read: int) -> None:
    on = {"model": model, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    start, question = user(text("x" * 5000, marked=True)), user(text("q" * 100, marked=True))
    world = World(AnthropicRules())
    world.ask(body([start, assistant(thinking(), "ok"), question], **on))
    account = world.ask(body([start, assistant("ok"), question, assistant("so"), user(text("?", marked=True))], **on))
    assert account.split.read == read
    assert [each.path for each in account.breaks] == (["messages[1].content[0]"] if read == 5000 else [])


def test_cleared_tool_results_break_the_prefix_from_there() -> None:
    world, start = World(AnthropicRules()), [user(text(LONG, marked=True)), assistant(tool_use("t1"))]
    end = [assistant("done"), user(text("next", marked=True))]
    world.ask(body([*start, user(tool_result("t1", "y" * 900)), *end]))
    account = world.ask(body([*start, user(tool_result("t1", "[cleared]")), *end]))
    assert account.split.read == len(LONG)
    assert [(each.reason.value, each.path) for each in account.breaks] == [
        ("messages_changed", "messages[2].content[0]")
    ]


def test_the_order_of_keys_in_a_tool_input_counts() -> None:
    """Swift and Go put the keys of a map in random order."""
    world, start = World(AnthropicRules()), user(text(LONG, marked=True))
    for input in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        account = world.ask(body([start, assistant(tool_use("t1", input=input)), user(tool_result("t1", **mark()))]))
    assert account.split.read == len(LONG)
    assert account.breaks[0].path == "messages[1].content[0]"


def test_a_text_is_the_same_as_a_string_and_as_a_block() -> None:
    world = World(AnthropicRules())
    world.ask(body([user(text(LONG, marked=True))]))
    plain = {"role": "user", "content": LONG}
    assert world.ask(body([plain, assistant("ok"), user(text("next", marked=True))])).split.read == len(LONG)


def test_the_same_image_once_more_is_an_image_added() -> None:
    once, twice = (changed(messages=[user(text("m" * 2000, marked=True), *[PNG] * count)]) for count in (1, 2))
    found, account = levels(once, twice)
    assert found == "system"
    assert [(each.reason.value, each.path) for each in account.breaks] == [("settings_changed", "messages")]


STRIPS = ["claude-opus-4-1", "claude-sonnet-4-5", "claude-haiku-4-5", "claude-3-7-sonnet"]
KEEPS = ["claude-opus-4-5", "claude-sonnet-4-6", "claude-opus-5"]


@pytest.mark.parametrize("model", [*STRIPS, *KEEPS])
def test_ordinary_user_content_in_a_thinking_conversation(model: str) -> None:
    on = {"model": model, "thinking": {"type": "enabled", "budget_tokens": 2048}}
    opening = [user(text("x" * 5000, marked=True)), assistant(thinking(), tool_use("t1"))]
    loop = [*opening, user(tool_result("t1", **mark()))]
    world = World(AnthropicRules())
    world.ask(body(opening[:1], **on))
    first = world.ask(body(copy.deepcopy(loop), **on))
    assert first.split.read == 5000
    more = [*loop, assistant(thinking("so"), tool_use("t2")), user(tool_result("t2", **mark()))]
    assert world.ask(body(more, **on)).split.read == first.split.prompt_tokens  # tool results keep the thinking
    asked = [*loop, assistant("done"), user(text("next question", marked=True))]
    account = world.ask(body(asked, **on))
    if model in KEEPS:
        assert account.split.read == first.split.prompt_tokens
    else:
        assert account.split.read == 5000
        assert reasons(account) == ["messages_changed"]
        assert account.breaks[0].path == "messages[1].content[1]"
        assert "drops earlier thinking" in account.breaks[0].detail


def test_a_system_message_in_mid_conversation_loses_nothing() -> None:
    world = World(AnthropicRules())
    start = [user(text("x" * 600, marked=True))]
    world.ask(body(start))
    note = {"role": "system", "content": "The user has left."}
    account = world.ask(body([*start, assistant("ok"), note, user(text("hi", marked=True))]))
    assert (account.split.read, account.certain) == (600, True)


def test_a_mark_on_a_trailing_system_message_is_in_doubt() -> None:
    """anthropics/claude-code#96101: the entry was never matched."""
    note = {"role": "system", "content": [text("reminder", marked=True)]}
    assert not World(AnthropicRules()).ask(body([user("x" * 600), note])).certain


def test_where_the_prompt_first_differs_is_shown() -> None:
    """goruck/home-generative-agent#617 and many others: a clock in the system prompt."""
    world = World(AnthropicRules())
    for minute in ("10:00", "10:05"):
        system = [text(f"{'You help. ' * 100}It is {minute} now.", marked=True)]
        account = world.ask(body([user("hi")], system=system))
    (why,) = account.breaks
    assert (why.reason.value, why.path, why.offset, why.tokens) == ("system_changed", "system[0]", 1010, 1016)
    assert why.before.endswith("It is 10:00 now.")
    assert why.after.endswith("It is 10:05 now.")
    assert "edited" in why.detail


@pytest.mark.parametrize(
    ("then", "what"),
    [
        (["b", "a", "c"], "another order"),
        (["new", "a", "b", "c"], "put in"),
        (["b", "c"], "taken out"),
        (["A", "b", "c"], "edited"),
    ],
)
def test_what_happened_to_the_tools(then: list[str], what: str) -> None:
    """whoz-oss/coday#1322, Tencent/WeKnora PR#1463: the same tools in another order."""
    world = World(AnthropicRules())

    def ask(names: list[str]) -> Account:
        tools = [tool(name, input_schema={"note": "n" * 600}) for name in names]
        tools[-1] |= mark()
        return world.ask(body(tools=tools))

    ask(["a", "b", "c"])
    account = ask(then)
    assert reasons(account) == ["tools_changed"]
    assert what in account.breaks[0].detail


def test_two_changes_share_what_was_lost() -> None:
    """System and messages both differ: mending the system alone brings back what the mark between them holds."""
    world = World(AnthropicRules())
    first = request()
    world.ask(first)
    account = world.ask(changed(tool_choice={"type": "any"}, messages=[user(text("n" * 2000, marked=True))]))
    assert account.split.read == tokens(3)
    assert [(each.reason.value, each.tokens) for each in account.breaks] == [
        ("messages_changed", 2000),
        ("settings_changed", 0),
    ]


def test_a_change_behind_all_that_was_cached_is_no_reason() -> None:
    world = World(AnthropicRules())
    world.ask(body([user("q")], system=[text("s" * 2000, marked=True)]))
    account = world.ask(body([user("q")], system=[text("t" * 2000, marked=True)], tool_choice={"type": "any"}))
    assert reasons(account) == ["system_changed"]
    account = world.ask(body([user("r")], system=[text("t" * 2000, marked=True)]))
    assert (account.split.read, account.breaks) == (2000, ())
