"""Where marks may stand, how many, in which order, and where the automatic one lands."""

from __future__ import annotations

from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
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


def marked(request: dict[str, Any], **options: Any) -> list[tuple[str, str]]:
    return [(part.path, part.breakpoint.ttl) for part in read(request, **options).parts if part.breakpoint]


def refusal(request: dict[str, Any], **options: Any) -> tuple[str, str | None]:
    with pytest.raises(InvalidRequestError) as refused:
        read(request, **options)
    return str(refused.value), refused.value.param


def test_marks_on_tools_system_and_messages() -> None:
    request = body(
        [
            user(text("a", "5m")),
            assistant(text("b"), tool_use("t1")),
            user(tool_result("t1", **mark())),
        ],
        tools=[tool("x"), tool("y", **mark("1h"))],
        system=[text("s", "1h")],
    )
    assert marked(request) == [
        ("tools[1]", "1h"),
        ("system[0]", "1h"),
        ("messages[0].content[0]", "5m"),
        ("messages[2].content[0]", "5m"),
    ]


@pytest.mark.parametrize("kind", ["image", "document", "tool_use", "search_result", "compaction", "unheard_of"])
def test_blocks_that_can_carry_a_mark(kind: str) -> None:
    assert marked(body([user({"type": kind, **mark()})])) == [("messages[0].content[0]", "5m")]


@pytest.mark.parametrize(
    ("block", "place", "says"),
    [
        (thinking() | mark(), ".cache_control", "thinking block"),
        ({"type": "redacted_thinking", "data": "z", **mark()}, ".cache_control", "redacted_thinking block"),
        (text("", marked=True), ".cache_control", "an empty text"),
        (tool_result("t", [text("x", marked=True)]), ".content[0].cache_control", "only as a whole"),
        ({"type": "document", "source": {"type": "content", "content": [text("x", marked=True)]}},
         ".source.content[0].cache_control", "only as a whole"),
        (text("x") | {"citations": [{"type": "char_location", **mark()}]}, ".citations[0].cache_control", "as a whole"),
        (text("x") | {"cache_control": {"type": "forever"}}, ".cache_control", "ephemeral"),
        (text("x") | {"cache_control": "ephemeral"}, ".cache_control", "ephemeral"),
        (text("x", "2h"), ".cache_control.ttl", "5m or 1h, not '2h'"),
    ],
)  # fmt: skip
def test_marks_that_are_refused(block: dict[str, Any], place: str, says: str) -> None:
    message, param = refusal(body([user(block)]))
    assert says in message
    assert param == f"messages[0].content[0]{place}"
    assert str(param).removesuffix(".cache_control") in message


def test_a_null_mark_is_none() -> None:
    assert marked(body([user(text("x") | {"cache_control": None})], cache_control=None)) == []


def test_a_schema_or_an_input_may_speak_of_cache_control() -> None:
    schema = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    call = tool_use("t1", input={"cache_control": {"type": "whatever"}})
    request = body([user("x"), assistant(call), user(tool_result("t1"))], tools=[tool("a", input_schema=schema)])
    assert marked(request) == []


def test_four_marks_and_no_fifth() -> None:
    four = [text(str(number), marked=True) for number in range(4)]
    assert len(marked(body([user(*four)]))) == 4
    message, param = refusal(body([user(*four, text("5", marked=True))]))
    assert "up to 4 marks" in message
    assert param == "messages[0].content[4].cache_control"


def test_the_automatic_mark_takes_one_of_the_four() -> None:
    three = [text(str(number), marked=True) for number in range(3)]
    assert len(marked(body([user(*three, "last")], **mark()))) == 4
    message, param = refusal(body([user(*three, text("4", marked=True), "last")], **mark()))
    assert ("this has 4 and an automatic one" in message, param) == (True, "cache_control")


@pytest.mark.parametrize("ttl", [None, "5m", "1h"])
def test_the_automatic_mark_lands_on_the_last_block(ttl: str | None) -> None:
    request = body([user("a"), assistant("b"), user("c")], system="s", **mark(ttl))
    assert marked(request) == [("messages[2].content[0]", ttl or "5m")]


def test_the_automatic_mark_walks_back_over_what_cannot_carry_it() -> None:
    request = body([user("a"), assistant("b", thinking()), user(text(""))], **mark())
    assert marked(request) == [("messages[1].content[0]", "5m")]
    assert marked(body([user(text(""))], tools=[tool("t")], **mark())) == [("tools[0]", "5m")]
    assert marked(body([user(text(""))], **mark())) == []
    (why,) = World(AnthropicRules()).ask(body([user(text(""))], **mark())).breaks
    assert (why.reason.value, why.detail) == (
        "not_asked",
        "No block carries `cache_control`, its own or that of the top level.",
    )


def test_the_automatic_mark_on_a_marked_block() -> None:
    assert marked(body([user(text("a", "1h"))], **mark("1h"))) == [("messages[0].content[0]", "1h")]
    message, param = refusal(body([user(text("a", "5m"))], **mark("1h")))
    assert ("one lifetime for both" in message, param) == (True, "cache_control")


def test_the_automatic_mark_moves_with_the_conversation() -> None:
    world, turns = World(AnthropicRules()), [user(LONG)]
    read_before = 0
    for number in range(5):
        account = world.ask(body(list(turns), **mark()))
        assert account.split.read == read_before
        assert account.split.fresh == 0
        read_before = account.split.prompt_tokens
        turns += [assistant(f"answer {number}"), user(f"question {number}")]


@pytest.mark.parametrize(
    ("lifetimes", "refused"),
    [(["1h", "1h", "5m"], None), (["5m", "1h"], 1), (["1h", "5m", "1h"], 2), (["5m", "5m"], None)],
)
def test_longer_lifetimes_come_first(lifetimes: list[str], refused: int | None) -> None:
    request = body([user(*(text(str(number), ttl) for number, ttl in enumerate(lifetimes)))])
    if refused is None:
        assert len(marked(request)) == len(lifetimes)
        return
    message, param = refusal(request)
    assert param == f"messages[0].content[{refused}].cache_control.ttl"
    assert "longer lifetimes first" in message


def test_the_order_is_that_of_the_prefix_not_of_the_body() -> None:
    request = {"messages": [user(text("m", "5m"))], "system": [text("s", "1h")], "model": "claude-opus-5"}
    assert [ttl for _, ttl in marked(request)] == ["1h", "5m"]
    _, param = refusal(body([user("m")], tools=[tool("t", **mark("5m"))], system=[text("s", "1h")]))
    assert param == "system[0].cache_control.ttl"
    _, param = refusal(body([user("m")], system=[text("s", "5m")], **mark("1h")))
    assert param == "messages[0].content[0].cache_control.ttl"


def test_without_a_mark_nothing_is_cached_and_the_report_says_so() -> None:
    """vercel/ai#5883: the option was not forwarded, so nothing was asked for."""
    world = World(AnthropicRules())
    for _ in range(2):
        account = world.ask(body([user("x" * 5000)], system="a string-only system cannot carry a mark"))
    assert (account.split.read, account.split.written, reasons(account)) == (0, {}, ["not_asked"])
    assert account.breaks[0].tokens == account.split.prompt_tokens  # all of it had been sent before


def test_legacy_bedrock_refuses_the_automatic_mark() -> None:
    old, new = (body([user("x")], model=model, **mark()) for model in ("claude-opus-4-6", "claude-opus-4-7"))
    assert refusal(old, platform="bedrock")[1] == "cache_control"
    assert marked(new, platform="bedrock")
    assert marked(old)


@pytest.mark.parametrize(
    ("model", "platform", "taken"),
    [
        ("claude-opus-4-8", "claude-api", True),
        ("claude-sonnet-5-5", "claude-api", True),
        ("claude-sonnet-5", "claude-api", False),
        ("claude-opus-4-7", "claude-api", False),
        ("claude-opus-5", "foundry", False),
    ],
)
def test_which_models_take_system_messages(model: str, platform: str, taken: bool) -> None:
    request = body([user("x"), {"role": "system", "content": "note"}], model=model)
    if taken:
        assert read(request, platform=platform).parts[1].role == "system"
    else:
        assert refusal(request, platform=platform)[1] == "messages[1].content"


def test_a_deferred_tool_is_no_part_of_the_prefix() -> None:
    request = body(tools=[tool("a"), tool("b", defer_loading=True)])
    assert [part.path for part in read(request).parts] == ["tools[0]", "messages[0].content[0]"]
    assert "tools.deferred" in read(request).settings
    request["tools"][1] |= mark()
    assert refusal(request)[1] == "tools[1].cache_control"


def toolset(**fields: Any) -> dict[str, Any]:
    return {"type": "mcp_toolset", "mcp_server_name": "files", **fields}


def test_the_mark_of_an_mcp_toolset_lands_on_its_last_tool() -> None:
    pinned = [tool("read"), tool("write"), tool("find")]
    assert marked(body(tools=[toolset(**mark())])) == [("tools[0]", "5m")]
    assert marked(body(tools=[toolset(tools=pinned, **mark())])) == [("tools[0].tools[2]", "5m")]
    configs = {"find": {"enabled": False}}
    assert marked(body(tools=[toolset(tools=pinned, configs=configs, **mark())])) == [("tools[0].tools[1]", "5m")]
    late = toolset(tools=pinned, default_config={"defer_loading": True})
    assert len(read(body(tools=[late])).parts) == 1
    assert refusal(body(tools=[{**late, **mark()}]))[1] == "tools[0].cache_control"


def test_text_in_a_string_and_in_a_block_is_the_same() -> None:
    one, other = read(body([user("hi")])), read(body([{"role": "user", "content": "hi"}]))
    assert one.parts[0].identity == other.parts[0].identity
    assert (one.parts[0].path, other.parts[0].path) == ("messages[0].content[0]", "messages[0].content")


def test_pictures_are_kept_by_digest_only() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}
    one = read(body([user({"type": "image", "source": source})])).parts[0]
    other = read(body([user({"type": "image", "source": {**source, "data": "B" * 100_000}})])).parts[0]
    assert len(one.content) < 300
    assert one.identity != other.identity
    nested = read(body([user(tool_result("t", [{"type": "image", "source": source}]))]))
    assert "images" in nested.settings
    assert nested.parts[0].tokens > 1_600


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"messages": []}, "model"),
        ({"model": 5}, "model"),
        (body([user("x")], system=5), "system"),
        (body([user("x")], tools={"a": 1}), "tools"),
        (body([user("x")], tools=["a"]), "tools[0]"),
        ({"model": "claude-opus-5", "messages": ["x"]}, "messages[0]"),
    ],
)
def test_bodies_that_are_none_are_refused_by_place(request_: dict[str, Any], param: str) -> None:
    assert refusal(request_)[1] == param


def test_other_apis_are_not_read() -> None:
    with pytest.raises(InvalidRequestError, match="messages API"):
        World(AnthropicRules()).ask(body(), api="chat")
