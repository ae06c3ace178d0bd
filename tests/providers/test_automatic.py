from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import InvalidRequestError
from kvledger.providers.automatic import AutomaticRules
from kvledger.providers.deepseek.rules import DeepSeekRules
from kvledger.providers.gemini.rules import GeminiRules
from kvledger.providers.kimi.rules import KimiRules
from kvledger.providers.qwen.rules import QwenRules
from kvledger.providers.rulebook import Rulebook
from kvledger.providers.steps import PIECE, rounded
from tests.providers.letters import Letters, World, chat, reasons

GROQ, MISTRAL, GROK = "openai/gpt-oss-20b", "mistral-large-latest", "grok-4.7"


@pytest.mark.parametrize(
    ("shared", "minimum", "step", "counted"),
    [
        # golden case openai-128-steps
        (0, 1024, 128, 0),
        (3000, 1024, 128, 2944),
        (1500, 1024, 128, 1408),
        (1000, 1024, 128, 0),
        (1024, 1024, 128, 1024),
        (1023, 1024, 1, 0),
        (127, 0, 64, 64),
        (63, 0, 64, 0),
        (777, 0, 1, 777),
    ],
)
def test_minimum_and_steps(shared, minimum, step, counted):
    assert rounded(shared, minimum=minimum, step=step) == counted


def test_the_next_turn_reads_the_whole_turn_before():
    world = World(AutomaticRules("groq"))
    first = world.ask(chat(GROQ, "s" * 200, "u" * 100))
    assert (first.split.read, first.split.fresh, reasons(first)) == (0, 300, ["cold"])
    second = world.ask(chat(GROQ, "s" * 200, "u" * 100, "a" * 50, "v" * 70))
    assert (second.split.read, second.split.fresh, second.breaks) == (300, 120, ())
    assert second.rule == "groq/gpt-oss"
    assert not second.certain


@pytest.mark.parametrize(("length", "read"), [(127, 0), (128, 128)])
def test_groq_caches_from_its_minimum_on(length, read):
    world = World(AutomaticRules("groq"))
    body = chat(GROQ, "s" * length)
    world.ask(body)
    again = world.ask(body)
    assert again.split.read == read
    assert reasons(again) == ([] if read else ["below_minimum"])


@pytest.mark.parametrize(("gap", "read"), [(7200.0, 300), (7201.0, 0)])
def test_groq_forgets_after_two_hours_without_use(gap, read):
    world = World(AutomaticRules("groq"))
    body = chat(GROQ, "s" * 300)
    world.ask(body)
    world.ask(body, after=7000)  # renews
    again = world.ask(body, after=gap)
    assert again.split.read == read
    assert reasons(again) == ([] if read else ["expired"])
    if not read:
        assert again.breaks[0].tokens == 300
        assert "7201 s" in again.breaks[0].detail
        assert world.ask(body).split.read == 300  # written anew


@pytest.mark.parametrize(("system", "read"), [(63, 0), (64, 64), (127, 64), (128, 128)])
def test_mistral_counts_in_blocks_of_64(system, read):
    world = World(AutomaticRules("mistral"))
    world.ask(chat(MISTRAL, "s" * system, "one"))
    assert world.ask(chat(MISTRAL, "s" * system, "two")).split.read == read


def test_a_beginning_that_ends_inside_a_text_is_found_to_the_piece():
    world = World(AutomaticRules("xai"))
    world.ask(chat(GROK, "s" * 1000 + "x" * 500))
    account = world.ask(chat(GROK, "s" * 1000 + "y" * 500))
    assert account.split.read == 1000 // PIECE * PIECE
    (found,) = account.breaks
    assert (found.reason.value, found.path, found.offset) == ("system_changed", "messages[0].content", 1000)
    assert found.tokens == 1500 - account.split.read
    assert "x" in found.before
    assert "y" in found.after


def test_a_text_is_the_same_as_a_string_and_as_a_block():
    world = World(AutomaticRules("xai"))
    world.ask(chat(GROK, "s" * 500))
    block = {"model": GROK, "messages": [{"role": "system", "content": [{"type": "text", "text": "s" * 500}]}]}
    assert world.ask(block).split.read == 500


@pytest.mark.parametrize(
    ("change", "reason", "path"),
    [
        ({"model": "grok-4.5"}, "model_changed", "model"),
        ({"tools": [{"type": "function", "function": {"name": "g"}}]}, "tools_changed", "tools[0]"),
        ({"messages": [{"role": "system", "content": "t" * 300}]}, "cold", None),
    ],
)
def test_what_a_change_is_called(change, reason, path):
    world = World(AutomaticRules("xai"))
    tools = [{"type": "function", "function": {"name": "f"}}]
    world.ask({**chat(GROK, "s" * 300), "tools": tools})
    body = {**chat(GROK, "s" * 300), "tools": tools, **change}
    if reason == "cold":
        del body["tools"]
    account = world.ask(body)
    assert account.split.read == 0
    assert reasons(account) == [reason]
    assert account.breaks[0].path == path


def test_two_models_in_turn_each_find_their_own():
    world = World(AutomaticRules("xai"))
    for model in ("grok-4.7", "grok-4.5"):
        world.ask(chat(model, "s" * 300))
    again = world.ask(chat("grok-4.7", "s" * 300, "u" * 20))
    assert (again.split.read, again.breaks) == (300, ())
    gone = world.ask(chat("grok-4.5", "s" * 300), after=4000)
    assert (gone.split.read, reasons(gone), gone.breaks[0].tokens) == (0, ["expired"], 300)


def test_reordered_tools_lose_everything_from_the_first_that_moved():
    """whoz-oss/coday#1322: tools came from an unordered database query."""
    tools = [{"type": "function", "function": {"name": name}} for name in "abc"]
    world = World(AutomaticRules("xai"))
    world.ask({**chat(GROK, "s" * 300), "tools": tools})
    account = world.ask({**chat(GROK, "s" * 300), "tools": [tools[0], tools[2], tools[1]]})
    assert reasons(account) == ["tools_changed"]
    assert account.breaks[0].path == "tools[1]"
    assert account.split.read == len('{"type":"function","function":{"name":"a"}}')


def test_scopes_and_isolation_keys_share_nothing():
    world = World(AutomaticRules("fireworks"))
    body = chat("accounts/fireworks/models/llama-v3p1-8b-instruct", "s" * 300)
    world.ask(body)
    assert world.ask(body, scope="other").split.read == 0
    keyed = world.ask({**body, "prompt_cache_isolation_key": "k"})
    assert (keyed.split.read, reasons(keyed)) == (0, ["key_changed"])
    assert keyed.breaks[0].path == "prompt_cache_isolation_key"
    assert world.ask({**body, "user": "u"}).split.read == 300  # chooses the place only


def test_a_request_that_comes_before_the_first_response_begins_reads_nothing():
    world = World(AutomaticRules("groq"), begins=2.0)
    body = chat(GROQ, "s" * 300)
    world.ask(body)
    parallel = world.ask(body, after=1.0)
    assert (parallel.split.read, reasons(parallel)) == (0, ["not_yet_readable"])
    assert world.ask(body, after=1.0).split.read == 300


def test_responses_format():
    world = World(AutomaticRules("xai"))
    body = {"model": GROK, "instructions": "s" * 300, "input": [{"role": "user", "content": "hi"}]}
    world.ask(body, api="responses")
    account = world.ask({**body, "input": [{"role": "user", "content": "ho"}]}, api="responses")
    assert account.split.read == 300
    assert account.breaks[0].path == "input[0].content"


def test_reasoning_that_is_not_sent_back_is_a_change_of_the_messages():
    """The leading cause of misses that xAI's page names."""
    world = World(AutomaticRules("xai"))
    answer = {"role": "assistant", "content": "answer", "reasoning_content": "thought " * 50}
    question, more = {"role": "user", "content": "u" * 300}, {"role": "user", "content": "more"}
    world.ask({"model": GROK, "messages": [question, answer, more]})
    dropped = {name: value for name, value in answer.items() if name != "reasoning_content"}
    account = world.ask({"model": GROK, "messages": [question, dropped, more]})
    assert reasons(account) == ["messages_changed"]
    assert account.split.read == 306


def test_unknown_models_and_formats_are_refused_with_what_to_do():
    rules = AutomaticRules("groq")
    world = World(rules)
    with pytest.raises(InvalidRequestError, match="did you mean gpt-oss-20b"):
        world.ask(chat("gpt-oss-2b", "s"))
    with pytest.raises(InvalidRequestError, match="not 'completions'"):
        rules.prompt(chat(GROQ, "s"), scope="", counter=Letters(), api="completions")
    with pytest.raises(InvalidRequestError, match="`model` is required"):
        rules.prompt({"messages": []}, scope="", counter=Letters())


RULEBOOKS: list[tuple[Rulebook, str]] = [
    (AutomaticRules("groq"), GROQ),
    (AutomaticRules("mistral"), MISTRAL),
    (AutomaticRules("xai"), GROK),
    (AutomaticRules("zai"), "glm-5.2"),
    (AutomaticRules("fireworks"), "llama"),
    (DeepSeekRules(), "deepseek-flash"),
    (KimiRules(), "kimi-k3"),
    (KimiRules(), "kimi-k2.6"),
    (QwenRules(), "qwen3-max"),
]
TEXTS = st.lists(st.sampled_from(["", "a", "b" * 70, "c" * 300, "d" * 1100, "c" * 250 + "e"]), min_size=1, max_size=5)
REQUESTS = st.lists(st.tuples(TEXTS, st.sampled_from([0.0, 1.0, 200.0, 400.0, 10_000.0])), min_size=1, max_size=6)


@pytest.mark.parametrize(("rules", "model"), RULEBOOKS, ids=lambda value: value if isinstance(value, str) else "")
@settings(max_examples=40, deadline=None)
@given(requests=REQUESTS, marked=st.booleans())
def test_laws(rules: Rulebook, model: str, requests: Any, marked: bool):
    """The parts sum up (checked by `Split`); nothing is read that was not sent before; judging changes nothing; a
    longer wait never reads more; another scope reads nothing."""
    world, seen = World(rules), []
    for texts, gap in requests:
        body = chat(model, *texts)
        if marked and model.startswith("qwen"):
            content = {"type": "text", "text": texts[-1], "cache_control": {"type": "ephemeral"}}
            body["messages"][-1]["content"] = [content]
        prompt = rules.prompt(body, scope="s", counter=Letters())
        at = world.at + gap
        twice = [rules.judge(prompt, world.entries, at) for _ in range(2)]
        assert twice[0] == twice[1]
        later = rules.judge(prompt, world.entries, at + 100_000)
        foreign = rules.judge(rules.prompt(body, scope="t", counter=Letters()), world.entries, at)
        assert later.account.split.read == 0
        assert foreign.account.split.read == 0
        account = world.ask(body, after=gap)
        flat = "\0".join(texts)
        shared = max((_common(flat, other) for other in seen), default=0)
        assert account.split.read <= shared
        assert all(found.tokens >= 0 for found in account.breaks)
        assert account.split.read + sum(found.tokens for found in account.breaks) <= prompt.tokens
        seen.append(flat)


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, drop=st.sampled_from([0.0, 0.5, 1.0]))
def test_laws_of_gemini(requests: Any, drop: float):
    rules, calm = GeminiRules(drop=drop, seed=3), GeminiRules()
    world, without = World(rules), World(calm)
    for texts, gap in requests:
        contents = [{"role": "user", "parts": [{"text": text * 20}]} for text in texts]
        body = {"model": "gemini-2.5-flash", "contents": contents}
        account, sure = world.ask(body, after=gap), without.ask(body, after=gap)
        assert account.split.read <= sure.split.read
        if drop == 1.0:
            assert account.split.read == 0
        if drop == 0.0:
            assert account == sure


def _common(one: str, other: str) -> int:
    """Letters that two chats share from the start, without the separators."""
    shared = 0
    for a, b in zip(one + "\1", other + "\2", strict=False):
        if a != b:
            break
        shared += a != "\0"
    return shared
