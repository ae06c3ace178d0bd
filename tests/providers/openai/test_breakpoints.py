"""GPT-5.6 and later: breakpoints, look-up set, lifetimes, write fees, and what loses the prefix."""

from __future__ import annotations

from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from tests.providers.letters import Letters, reasons
from tests.providers.openai.world import SEPTEMBER, ask, message, openai, words

STATIC = words(2000, "s")
EXPLICIT = {"prompt_cache_options": {"mode": "explicit"}}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    """A system message and then user and assistant in turn."""
    roles = ("system", *("user" if turn % 2 == 0 else "assistant" for turn in range(len(texts) - 1)))
    return ask(*(message(role, text) for role, text in zip(roles, texts, strict=True)), **fields)


def shown(split) -> tuple[int, dict[str, int], int]:
    return split.read, dict(split.written), split.fresh


def test_a_conversation_reads_what_the_turn_before_wrote():
    world = openai()
    assert shown(world.ask(chat(STATIC, words(100))).split) == (0, {"30m": 2100}, 0)
    account = world.ask(chat(STATIC, words(100), words(50, "x"), words(70)))
    assert shown(account.split) == (2100, {"30m": 120}, 0)  # the answer's 50 and the new 70
    assert account.breaks == ()
    assert account.certain
    assert account.rule == "openai/breakpoints, SDK of 2026-11"


def test_the_boundary_is_exact():
    world = openai()
    world.ask(chat(STATIC, words(9)))
    assert world.ask(chat(STATIC, words(9), "yes", "and?")).split.read == 2009


@pytest.mark.parametrize(("tokens", "written"), [(1023, {}), (1024, {"30m": 1024})])
def test_minimum(tokens, written):
    world = openai()
    account = world.ask(ask(message("user", words(tokens))))
    assert dict(account.split.written) == written
    assert reasons(account) == (["cold"] if written else ["below_minimum"])
    assert world.ask(ask(message("user", words(tokens)))).split.read == (tokens if written else 0)


def test_the_implicit_breakpoint_behind_a_changing_end_is_never_read():
    """The guide's gotcha: one-shot calls share a static prefix, hit nothing and pay for a write each time."""
    world = openai()
    for number in range(3):
        account = world.ask(chat(STATIC, f"question {number}"))
        assert shown(account.split) == (0, {"30m": 2010}, 0)
    assert reasons(account) == ["never_written", "messages_changed"]
    never, changed = account.breaks
    assert never.tokens == 2000
    assert (changed.path, changed.offset, changed.tokens) == ("messages[1].content[0]", 9, 10)


def test_an_explicit_breakpoint_rescues_it():
    world = openai()
    bodies = [ask(message("system", STATIC, mark=True), message("user", f"question {n}")) for n in range(3)]
    assert shown(world.ask(bodies[0]).split) == (0, {"30m": 2010}, 0)
    assert shown(world.ask(bodies[1]).split) == (2000, {"30m": 10}, 0)
    explicit = openai()
    for body, expected in zip(bodies, [(0, {"30m": 2000}, 10), (2000, {}, 10), (2000, {}, 10)], strict=True):
        assert shown(explicit.ask({**body, **EXPLICIT}).split) == expected


def test_explicit_mode_without_breakpoints_caches_nothing():
    world = openai()
    for _ in range(2):
        account = world.ask(chat(STATIC, "hi", **EXPLICIT))
        assert (shown(account.split), reasons(account)) == ((0, {}, 2002), ["not_asked"])


def test_from_implicit_to_explicit_only_is_a_miss():
    world = openai()
    world.ask(chat(STATIC, "hi"))
    account = world.ask(ask(message("system", STATIC), message("user", "hi", mark=True), **EXPLICIT))
    assert (account.split.read, reasons(account)) == (0, ["never_written"])


def test_text_appended_to_the_same_message_loses_its_end():
    world = openai()
    world.ask(ask(message("user", STATIC)))
    account = world.ask(ask(message("user", STATIC, "more")))
    assert (account.split.read, reasons(account)) == (0, ["never_written"])
    marked = openai()
    marked.ask(ask(message("user", STATIC, mark=True)))
    assert marked.ask(ask(message("user", STATIC, "more"))).split.read == 0  # the second does not look there
    both = {"role": "user", "content": [*message("user", STATIC, mark=True)["content"], {"type": "text", "text": "m"}]}
    assert marked.ask(ask(both)).split.read == 2000


@pytest.mark.parametrize(("mode", "marks"), [("implicit", 4), ("explicit", 5)])
def test_only_the_latest_breakpoints_are_written(mode, marks):
    """Three beside the implicit one, four in explicit mode: the first of one more is not."""
    blocks = [message("user", words(1100, f"{n}"), mark=True) for n in range(marks)]
    world = openai()
    world.ask(ask(*blocks, prompt_cache_options={"mode": mode}))
    reads = []
    for n in range(marks):
        probe = world.rules.prompt(ask(*blocks[: n + 1], **EXPLICIT), scope="s", counter=Letters())
        reads.append(world.rules.judge(probe, world.entries, world.at + 1).account.split.read)
    assert reads == [0, *(1100 * (n + 1) for n in range(1, marks))]


@pytest.mark.parametrize(("ttl", "seconds"), [("30m", 1800), ("12h", 43200)])
def test_lifetimes_at_the_boundary_and_renewal_by_reuse(ttl, seconds):
    body = {"model": "gpt-6-sol", "input": STATIC, "prompt_cache_options": {"ttl": ttl}}
    world = openai()
    assert dict(world.ask(body).split.written) == {ttl: 2000}
    for _ in range(3):
        assert world.ask(body, after=seconds).split.read == 2000
    account = world.ask(body, after=seconds + 1)
    assert (account.split.read, reasons(account), account.breaks[0].tokens) == (0, ["expired"], 2000)
    assert f"lives {seconds} s" in account.breaks[0].detail


def test_the_fee_is_split_by_the_lifetime_of_the_place_it_leads_to():
    body = ask(message("developer", words(4000), mark={"ttl": "12h"}), message("user", words(2000, "u")))
    assert shown(openai().ask(body).split) == (0, {"12h": 4000, "30m": 2000}, 0)


def test_a_breakpoint_inherits_the_requests_ttl():
    body = {
        "model": "gpt-6-sol",
        "input": [message("developer", STATIC, mark=True, kind="input_text")],
        "prompt_cache_options": {"ttl": "12h"},
    }
    assert dict(openai().ask(body).split.written) == {"12h": 2000}


def test_the_static_part_outlives_the_conversation_under_12h():
    world = openai()
    start = message("developer", STATIC, mark={"ttl": "12h"})
    world.ask(ask(start, message("user", words(500))))
    account = world.ask(ask(start, message("user", words(500))), after=7200)
    assert shown(account.split) == (2000, {"30m": 500}, 0)
    assert reasons(account) == ["expired"]


def test_whether_a_longer_breakpoint_lengthens_an_entry_is_not_certain():
    world = openai()
    world.ask(ask(message("user", STATIC, mark=True), **EXPLICIT))
    account = world.ask(ask(message("user", STATIC, mark={"ttl": "12h"}), **EXPLICIT))
    assert (account.split.read, account.certain) == (2000, False)


@pytest.mark.parametrize(
    ("fields", "reason", "path"),
    [
        ({"model": "gpt-6-luna"}, "model_changed", "model"),
        ({"prompt_cache_key": "other"}, "key_changed", "prompt_cache_key"),
        ({"tools": [TOOL]}, "tools_changed", "tools[0]"),
        ({"reasoning": {"effort": "high"}}, "settings_changed", "reasoning.effort"),
        ({"text": {"verbosity": "low"}}, "settings_changed", "text.verbosity"),
        ({"text": {"format": {"type": "json_object"}}}, "settings_changed", "text.format"),
        ({"service_tier": "flex"}, "settings_changed", "service_tier"),
        ({"parallel_tool_calls": False}, "settings_changed", "parallel_tool_calls"),
        ({"context_management": [{"type": "compaction"}]}, "settings_changed", "context_management"),
        ({"instructions": "Be brief."}, "system_changed", "instructions"),
    ],
)
def test_what_loses_everything(fields, reason, path):
    body = {"model": "gpt-6-sol", "input": [message("user", STATIC, kind="input_text")]}
    world = openai()
    world.ask(body)
    account = world.ask({**body, **fields})
    assert account.split.read == 0
    assert (reasons(account), account.breaks[0].path) == ([reason], path)
    assert account.breaks[0].tokens == 2000


@pytest.mark.parametrize(
    "fields",
    [{"service_tier": "auto"}, {"service_tier": "default"}, {"temperature": 1}, {"tool_choice": "none"},
     {"reasoning": {"summary": "auto"}}, {"text": {"verbosity": "medium"}}, {"store": False}],
)  # fmt: skip
def test_what_loses_nothing(fields):
    body = {"model": "gpt-6-sol", "input": STATIC}
    world = openai()
    world.ask(body)
    assert world.ask({**body, **fields}).split.read == 2000


def test_tools_that_are_loaded_later_are_no_part_of_the_prefix():
    world, body = openai(), {"model": "gpt-6-sol", "input": STATIC, "tools": [TOOL]}
    world.ask(body)
    later = {**TOOL, "name": "g", "defer_loading": True}
    assert world.ask({**body, "tools": [TOOL, later]}).split.read > 2000


def test_parallel_requests_each_pay_for_the_write():
    world, body = openai(begins=3.0), chat(STATIC, "hi")
    accounts = [world.ask(body, after=1) for _ in range(3)]
    assert [shown(each.split) for each in accounts] == [(0, {"30m": 2002}, 0)] * 3
    assert reasons(accounts[1]) == ["not_yet_readable"]
    assert world.ask(body, after=3).split.read == 2002


def test_scopes_share_nothing_and_do_not_show():
    world = openai()
    first = world.ask(chat(STATIC, "hi"), scope="alice")
    assert world.ask(chat(STATIC, "hi"), scope="bob") == first
    assert world.ask(chat(STATIC, "hi"), scope="alice").split.read == 2002


def tools_used(count: int) -> list[dict[str, Any]]:
    """A user message, then `count` calls with their responses, each response a group of its own."""
    items: list[dict[str, Any]] = [{"role": "user", "content": STATIC}]
    for n in range(count):
        items.append({"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"})
        items.append({"type": "function_call_output", "call_id": f"c{n}", "output": f"result {n}"})
    return items


@pytest.mark.parametrize(
    ("at", "added", "found"),
    [(SEPTEMBER, 20, True), (SEPTEMBER, 21, False), (None, 79, True), (None, 80, False)],
)
def test_the_look_up_set_by_date(at, added, found):
    """September's guide: the implicit one and 20 ends before it. November's SDK: the latest 80 of all."""
    world = openai(at) if at else openai()
    world.ask({"model": "gpt-6-sol", "input": tools_used(0)})
    account = world.ask({"model": "gpt-6-sol", "input": tools_used(added)})
    assert (account.split.read == 2000) is found
    if not found:
        assert reasons(account) == ["lookback_exceeded"]
        assert not account.certain
        assert f"{added} breakpoints lie behind it" in account.breaks[0].detail


def test_the_guide_looks_at_the_first_two_and_latest_fifty_breakpoints():
    marked = [message("user", words(1100 if n == 0 else 30, f"m{n}"), mark=True) for n in range(60)]
    for at, written, read in ((SEPTEMBER, 2, True), (SEPTEMBER, 3, False), (None, 3, True)):
        world = openai(at) if at else openai()
        world.ask(ask(*marked[:written], **EXPLICIT))
        entries = [entry for entry in world.entries._entries.values() if entry.tokens != 1100 + 30 * (written - 1)]
        for entry in entries:  # leave the latest alone, so that only it can be found
            del world.entries._entries[entry.digest]
        assert bool(world.ask(ask(*marked, **EXPLICIT)).split.read) is read


def test_only_the_last_response_of_a_group_is_an_end():
    calls = [{"type": "function_call", "call_id": f"c{n}", "name": "f", "arguments": "{}"} for n in range(2)]
    results = [{"type": "function_call_output", "call_id": f"c{n}", "output": words(100, f"r{n}")} for n in range(2)]
    start = {"role": "user", "content": STATIC}
    world = openai()
    whole = world.ask({"model": "gpt-6-sol", "input": [start, *calls, *results]})
    assert whole.split.written_tokens == whole.split.prompt_tokens
    again = [start, *calls, *results, {"role": "user", "content": "go on"}]
    assert world.ask({"model": "gpt-6-sol", "input": again}).split.read == whole.split.prompt_tokens
    partly = openai()
    partly.ask({"model": "gpt-6-sol", "input": [start, *calls, results[0]]})
    assert partly.ask({"model": "gpt-6-sol", "input": [start, *calls, *results]}).split.read == 0


def test_an_assistant_message_at_the_end_is_not_written():
    account = openai().ask(ask(message("user", STATIC), message("assistant", words(40))))
    assert shown(account.split) == (0, {"30m": 2000}, 40)


def test_ids_of_output_items_do_not_matter_and_their_text_does():
    def turn(id: str, text: str) -> dict[str, Any]:
        output = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        said = {"type": "message", "id": id, "status": "completed", "role": "assistant", "content": [output]}
        return {"model": "gpt-6-sol", "input": [{"role": "user", "content": STATIC}, said, message("user", "x")]}

    world = openai()
    world.ask(turn("msg_1", "hello"))
    assert world.ask(turn("msg_2", "hello")).split.read == 2006
    assert world.ask(turn("msg_1", "howdy")).split.read == 0  # only the whole conversation had been written


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_cache_options": {"mode": "auto"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl"),  # Chat has 30m only
        ({"prompt_cache_options": "explicit"}, "prompt_cache_options"),
        ({"tools": [{**TOOL, "prompt_cache_breakpoint": {"mode": "explicit"}}]}, "tools[0].prompt_cache_breakpoint"),
        ({"messages": [message("assistant", "x", mark=True)]}, "messages[0].content[0].prompt_cache_breakpoint"),
        ({"messages": [message("user", "x", mark={"ttl": "5m"})]},
         "messages[0].content[0].prompt_cache_breakpoint.ttl"),
        ({"messages": [message("user", "x", mark={"mode": "on"})]}, "messages[0].content[0].prompt_cache_breakpoint"),
        ({"messages": [message("user", "x", mark=True, kind="refusal")]},
         "messages[0].content[0].prompt_cache_breakpoint"),
        ({"messages": "x"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"model": None}, "model"),
        ({"model": "gtp-6-sol"}, "model"),
    ],
)  # fmt: skip
def test_what_the_provider_would_refuse(fields, param):
    with pytest.raises(InvalidRequestError) as caught:
        openai().ask({**ask(message("user", "x")), **fields})
    assert caught.value.param == param


def test_a_day_before_the_first_edition_is_not_certain():
    world = openai(SEPTEMBER - 100 * 86400)
    account = world.ask(chat(STATIC, "hi"))
    assert (account.rule, account.certain) == ("openai/breakpoints, guide of 2026-07", False)
