"""Patches can be applied to the body of the example, and the provider would take what comes out."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvledger.audit.normalise import Bytes
from kvledger.audit.patches import pointer
from kvledger.providers.catalogue import rulebook
from tests.audit.logs import DIALECTS, MARK, SYSTEM, TOOLS, audited, body, prose, records, reported, turns
from tests.audit.test_causes import clock, tooled


def steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def at(value: Any, path: list[str]) -> Any:
    for step in path:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def put(value: Any, path: list[str], new: Any) -> None:
    holder, last = at(value, path[:-1]), path[-1]
    if isinstance(holder, list):
        holder.insert(len(holder) if last == "-" else int(last), new)
    else:
        holder[last] = new


def take(value: Any, path: list[str]) -> Any:
    holder = at(value, path[:-1])
    return holder.pop(int(path[-1]) if isinstance(holder, list) else path[-1])


def patched(sent: Any, patch: Any) -> Any:
    """RFC 6902, as far as our patches use it."""
    sent = copy.deepcopy(sent)
    for op in patch:
        path = steps(op["path"])
        match op["op"]:
            case "add":
                put(sent, path, op["value"])
            case "replace":
                take(sent, path)
                put(sent, path, op["value"])
            case "remove":
                take(sent, path)
            case "move":
                put(sent, path, take(sent, steps(op["from"])))
    return sent


def mended(dialect: str, bodies: list[dict[str, Any]], code: str) -> dict[str, Any]:
    log = reported(records(dialect, bodies))
    found = next(each for each in audited(log).findings if each.code.value == code)
    assert found.change.patch
    example = log[found.example.line - 1]
    result = patched(example.body, found.change.patch)
    rulebook(example.provider).prompt(result, scope="", counter=Bytes(), api=example.api)  # it is a valid body
    return result


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_clock_moves_to_the_end(dialect):
    said = turns(9)
    bodies = [body(dialect, clock(number) + SYSTEM, said[: 2 * number + 1]) for number in range(5)]
    result = mended(dialect, bodies, "VOLATILE_PREFIX")
    last = result.get("messages") or result.get("input") or result["contents"]
    assert "2026-11-18" in str(last[-1])
    assert "2026-11-18" not in str({**result, "messages": [], "input": [], "contents": []})


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "gemini"])
def test_tools_are_sorted(dialect):
    bodies = [tooled(dialect, order, turns(1)) for order in (TOOLS, [*TOOLS[2:], *TOOLS[:2]])]
    result = mended(dialect, bodies, "TOOLS_REORDERED")
    assert [str(tool.get("name") or tool["function"]["name"]) for tool in result["tools"]] == sorted(
        each["name"] for each in TOOLS
    )


def test_a_mark_at_the_top():
    said = turns(5)
    bodies = [body("anthropic", SYSTEM, said[: 2 * n + 1], cache_control=None) for n in range(3)]
    assert mended("anthropic", bodies, "MARK_MISSING")["cache_control"] == {"type": "ephemeral"}


def test_a_mark_on_a_text_makes_it_a_block():
    bodies = [body("anthropic", SYSTEM, turns(1, f"q{n}x")) for n in range(4)]
    result = mended("anthropic", bodies, "MARK_ON_CHANGING_CONTENT")
    assert result["system"] == [{"type": "text", "text": SYSTEM, **MARK}]


def test_examples_go_back_to_their_first_order():
    examples = [(prose(f"in{name}", 300), prose(f"out{name}", 300)) for name in "abc"]
    bodies = [
        body("openai-steps", SYSTEM, [text for number in order for text in examples[number]] + turns(1, f"q{order[0]}"))
        for order in ([0, 1, 2], [2, 1, 0])
    ]
    result = mended("openai-steps", bodies, "EXAMPLES_REORDERED")
    assert result["messages"][:-1] == bodies[0]["messages"][:-1]


def test_a_longer_lifetime():
    said = turns(5)
    bodies = [body("anthropic", SYSTEM, said[: 2 * n + 1]) for n in range(3)]
    log = reported(records("anthropic", bodies, [0.0, 1000.0, 2000.0]))
    found = audited(log).findings[0]
    assert patched(bodies[1], found.change.patch)["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_pointers():
    assert pointer("messages[0].content[12]") == "/messages/0/content/12"
    assert pointer("system") == "/system"
