"""GPT-5.5 and earlier: minimum, steps, retention, and what loses the beginning."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.openai.rules import OpenAIRules
from tests.providers.letters import Letters, reasons
from tests.providers.openai.world import ask, message, openai, words

CASES = Path(__file__).parents[4] / "shared" / "cases" / "usage-golden.json"
OLD = "gpt-5.2"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def plain(*texts: str, **fields: Any) -> dict[str, Any]:
    """Texts in turn, the system's first."""
    roles = ("system", "user", "assistant", "user", "assistant")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"model": OLD, "messages": messages, **fields}


def sent_twice(first: int, shared: int, second: int, model: str = OLD) -> int:
    """What a second prompt of `second` tokens reads that has the first `shared` of the first one's."""
    world = openai()
    world.ask(ask(message("user", words(shared), words(first - shared, "b")), model=model))
    return world.ask(ask(message("user", words(shared), words(second - shared, "c")), model=model)).split.read


@pytest.mark.parametrize(
    ("shared", "total", "read"),
    [
        (1023, 1100, 0),
        (1024, 1100, 1024),
        (1151, 1200, 1024),
        (1152, 1200, 1152),
        (3000, 3200, 2944),
        (1024, 1024, 1024),
    ],
)
def test_minimum_and_steps_of_128(shared, total, read):
    assert sent_twice(4000, shared, total) == read


@pytest.mark.parametrize(("shared", "read"), [(2047, 0), (2048, 2048), (4095, 2048), (4096, 4096), (6000, 4096)])
def test_gpt_5_5_stops_every_2048(shared, read):
    assert sent_twice(8000, shared, 7000, "gpt-5.5") == read


def test_a_short_prompt_is_told_the_minimum_in_force():
    """P31: prefixes below an invisible minimum never hit and nothing is logged."""
    account = openai().ask(ask(message("user", words(1023)), model=OLD))
    assert reasons(account) == ["below_minimum"]
    assert "1023 tokens; gpt-5.2 caches none shorter than 1024" in account.breaks[0].detail
    account = openai().ask(ask(message("user", words(2000)), model="gpt-5.5"))
    assert "2048" in account.breaks[0].detail


class Quarters:
    """Four letters are a token, about as in English."""

    def count(self, text: str) -> int:
        return len(text) // 4


@pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not beside this checkout")
def test_golden_128_steps():
    (case,) = [each for each in json.loads(CASES.read_text())["cases"] if each["id"] == "openai-128-steps"]
    rules, entries, base, read = OpenAIRules(), MemoryEntries(), words(12000), []
    for number, record in enumerate(case["records"]):
        same, total = 4 * record["identical_prefix_tokens"], 4 * record["usage"]["prompt_tokens"]
        text = base[:same] + words(total - same, f"q{number}") if number else base
        prompt = rules.prompt(ask(message("user", text), model=case["model"]), scope="s", counter=Quarters())
        verdict = rules.judge(prompt, entries, datetime.fromisoformat(record["ts"]).timestamp())
        entries.put((*verdict.renewed, *verdict.written))
        assert verdict.account.split.prompt_tokens == record["usage"]["prompt_tokens"]
        read.append(verdict.account.split.read)
    assert read == case["expected"]["cached_by_rule"]


def test_nothing_is_billed_as_written():
    account = openai().ask(plain(words(2000), words(500)))
    assert (account.split.fresh, dict(account.split.written)) == (2500, {})


@pytest.mark.parametrize(
    ("model", "retention", "idle", "read", "certain"),
    [
        ("gpt-5-mini", None, 300, True, True),
        ("gpt-5-mini", None, 301, True, False),
        ("gpt-5-mini", None, 600, True, False),
        ("gpt-5-mini", None, 601, False, False),
        ("gpt-5-mini", None, 3601, False, True),
        ("gpt-5.2", "in_memory", 601, False, False),
        ("gpt-5.2", None, 601, True, True),
        ("gpt-5.2", "24h", 1800, True, True),
        ("gpt-5.2", "24h", 1801, False, False),
        ("gpt-5.2", "24h", 86401, False, True),
        ("gpt-5.5", None, 1800, True, True),
    ],
)
def test_retention_by_idle_time(model, retention, idle, read, certain):
    world, fields = openai(), {"prompt_cache_retention": retention} if retention else {}
    body = {**plain(words(3000), words(200), **fields), "model": model}
    world.ask(body)
    account = world.ask(body, after=idle)
    assert bool(account.split.read) is read
    assert account.certain is certain
    if not read:
        assert reasons(account) == ["expired"]
        assert f"renewed {idle} s before" in account.breaks[0].detail


def test_a_use_renews():
    world, body = openai(), {**plain(words(3000)), "model": "gpt-4o"}
    world.ask(body)
    assert [world.ask(body, after=500).split.read for _ in range(3)] == [2944] * 3


def test_azure_keeps_in_memory_where_openai_keeps_a_day():
    body = plain(words(3000))
    for platform, read in (("openai", 2944), ("azure", 0)):
        world = openai(platform=platform)
        world.ask(body)
        assert world.ask(body, after=900).split.read == read


@pytest.mark.parametrize(
    ("model", "retention"), [("gpt-5.5", "in_memory"), ("gpt-5-mini", "24h"), (OLD, "1h"), (OLD, 24)]
)
def test_a_retention_that_the_model_has_not_is_refused(model, retention):
    with pytest.raises(InvalidRequestError, match="for this model") as caught:
        openai().ask({**plain("x"), "model": model, "prompt_cache_retention": retention})
    assert caught.value.param == "prompt_cache_retention"


def test_the_key_is_routing_only():
    world = openai()
    world.ask(plain(words(3000), prompt_cache_key="one"))
    assert world.ask(plain(words(3000), prompt_cache_key="two")).split.read == 2944


@pytest.mark.parametrize(
    ("fields", "reason", "path"),
    [
        ({"model": "gpt-5.1"}, "model_changed", "model"),
        ({"tools": [TOOL]}, "tools_changed", "tools[0]"),
        ({"reasoning_effort": "high"}, "settings_changed", "reasoning_effort"),
        ({"verbosity": "low"}, "settings_changed", "verbosity"),
        ({"parallel_tool_calls": False}, "settings_changed", "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "settings_changed", "response_format"),
    ],
)
def test_what_loses_everything(fields, reason, path):
    world = openai()
    world.ask(plain(words(3000)))
    account = world.ask(plain(words(3000), **fields))
    assert (account.split.read, reasons(account), account.breaks[0].path) == (0, [reason], path)
    assert account.breaks[0].tokens == 2944


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0}, {"tool_choice": "none"}, {"user": "u"}, {"verbosity": "medium"}, {"metadata": {"a": "b"}},
     {"parallel_tool_calls": True}, {"response_format": {"type": "text"}}, {"service_tier": "flex"}],
)  # fmt: skip
def test_what_loses_nothing(fields):
    world = openai()
    world.ask(plain(words(3000)))
    assert world.ask(plain(words(3000), **fields)).split.read == 2944


def test_a_clock_in_the_system_prompt_is_found_by_its_place():
    world = openai()
    world.ask(plain(f"You are kind. It is 10:00. {words(4000)}", "hello"))
    account = world.ask(plain(f"You are kind. It is 10:05. {words(4000)}", "hello"))
    (found,) = account.breaks
    assert (account.split.read, found.reason.value, found.path) == (0, "system_changed", "messages[0].content")
    assert found.offset == len("You are kind. It is 10:0")
    assert "10:00" in found.before
    assert "10:05" in found.after
    assert found.tokens == 3968  # 4,032 tokens in whole steps


def test_a_change_inside_a_part_keeps_the_steps_before_it():
    world, text = openai(), words(8192)
    world.ask(plain(text))
    account = world.ask(plain(text[:5000] + "!" + text[5001:]))
    assert account.split.read == 4864  # 19 pieces of 256 are 4,864 = 38 steps


def test_equal_beginnings_are_cut_equally_after_scaling_to_the_providers_count():
    """The cut depends on the text before it alone, however many tokens the rest turns out to have."""
    rules, world = OpenAIRules(), openai()
    read = [rules.prompt(ask(message("user", words(4100) + tail), model=OLD), scope="s", counter=Letters())
            for tail in ("", words(3000, "z"))]  # fmt: skip
    first, second = read[0].scaled(5000), read[1].scaled(6000)
    world.entries.put(rules.judge(first, world.entries, world.at).written)
    account = rules.judge(second, world.entries, world.at + 1).account
    assert account.split.read == 3456  # 4,096 of 7,100 letters are 3,461 of 6,000 tokens: 27 steps


def test_scopes_share_nothing_and_do_not_show():
    """P06: nobody can tell from a miss that another scope has the same prompt."""
    world, body = openai(), plain(words(3000))
    never_sent = world.ask(body, scope="alice")
    assert world.ask(body, scope="bob") == never_sent
    assert world.ask(body, scope="alice").split.read == 2944


def test_requests_in_parallel_do_not_read_each_other():
    """P10: what is still being written cannot be read."""
    world = openai(begins=2.0)
    body = plain(words(3000))
    world.ask(body)
    account = world.ask(body, after=1)
    assert (account.split.read, reasons(account)) == (0, ["not_yet_readable"])
    assert world.ask(body, after=10).split.read == 2944


def test_a_model_without_a_cache_says_so():
    account = openai().ask({**plain(words(3000)), "model": "gpt-5-pro"})
    assert (account.split.read, reasons(account)) == (0, ["not_asked"])


def test_an_unknown_model_is_refused_with_near_names():
    with pytest.raises(InvalidRequestError, match="did you mean gpt-5-nano") as caught:
        openai().ask({**plain("x"), "model": "gpt-5-nanno"})
    assert caught.value.param == "model"


@pytest.mark.parametrize("model", ["gpt-5.2-2025-12-11", "ft:gpt-5.2-2025-12-11:acme::x1", "openai/gpt-5.2"])
def test_snapshots_and_fine_tuned_models_go_by_their_family(model):
    assert openai().ask({**plain(words(2000)), "model": model}).rule == "openai/automatic, 128 steps, up to 24 h"


def test_azure_refuses_the_fields_of_newer_models():
    for body in (
        plain("x", prompt_cache_options={"mode": "explicit"}),
        ask(message("user", "x", mark=True), model=OLD),
    ):
        with pytest.raises(InvalidRequestError, match=r"needs GPT-5\.6 or later"):
            openai(platform="azure").ask(body)
        assert openai().ask(body).split.read == 0


def test_a_body_is_read_alike_by_both_apis_and_in_both_spellings_of_a_text():
    world = openai()
    world.ask(ask(message("system", words(2000)), message("user", "hi"), model=OLD))
    spoken = {"model": OLD, "input": [{"role": "system", "content": words(2000)}, {"role": "user", "content": "hi"}]}
    assert world.ask(spoken).split.read == 1920


def test_lone_surrogates_do_not_break_the_digest():
    world, body = openai(), plain("\ud800" + words(2000))
    world.ask(body)
    assert world.ask(body).split.read == 1920
