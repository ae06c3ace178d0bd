"""What must hold whatever is asked, of both caches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvledger.errors import InvalidRequestError
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.openai.rules import OpenAIRules
from tests.providers.letters import Letters
from tests.providers.openai.world import NOVEMBER, message, openai, words

MODELS = st.sampled_from(["gpt-5.2", "gpt-5-mini", "gpt-5.5", "gpt-6-sol"])
TEXTS = st.builds(words, st.sampled_from([1, 200, 300, 1100, 2500]), st.sampled_from("abc"))
MARKS = st.sampled_from([None, None, True, {"ttl": "12h"}])
ROLES = st.sampled_from(["system", "user", "user", "user"])
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda role, text, mark: message(role, text, mark=mark), ROLES, TEXTS, MARKS),
        st.builds(lambda text: message("assistant", text), TEXTS),
    ),
    min_size=1,
    max_size=5,
)
MODES = st.sampled_from([{}, {}, {"prompt_cache_options": {"mode": "explicit"}}])
BODIES = st.builds(
    lambda model, messages, mode: {"model": model, "messages": messages, **mode}, MODELS, MESSAGES, MODES
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(BODIES, st.sampled_from([0.5, 60.0, 700.0, 2000.0, 50_000.0])), min_size=1, max_size=6))
def test_accounts_are_sound(traffic: list[tuple[dict[str, Any], float]]) -> None:
    """A split sums (`Split` sees to that), a read has its entry, nothing is billed twice, a miss has its reason."""
    world = openai()
    for body, after in traffic:
        account = world.ask(body, after=after)
        split = account.split
        assert split.read == 0 or split.read >= 1024
        assert split.read + split.written_tokens <= split.prompt_tokens
        assert account.breaks or split.read
        assert all(each.tokens >= 0 for each in account.breaks)
        assert split.read + max((each.tokens for each in account.breaks), default=0) <= split.prompt_tokens
        if not body["model"].startswith("gpt-6"):
            step = 2048 if body["model"] == "gpt-5.5" else 128
            assert split.read % step == 0
            assert not split.written


@settings(max_examples=60, deadline=None)
@given(BODIES, BODIES)
def test_judging_changes_nothing(first: dict[str, Any], second: dict[str, Any]) -> None:
    world = openai()
    world.ask(first)
    before = copy.deepcopy(world.entries._entries)
    prompt = world.rules.prompt(second, scope="s", counter=Letters())
    verdicts = [world.rules.judge(prompt, world.entries, world.at + 60) for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert world.entries._entries == before


@settings(max_examples=60, deadline=None)
@given(MODELS, st.lists(TEXTS, min_size=1, max_size=8))
def test_a_chat_that_is_only_appended_to_reads_what_the_rules_promise(model: str, texts: list[str]) -> None:
    world, messages, before = openai(), [message("system", words(1500, "s"))], 0
    for text in texts:
        messages.append(message("user", text))
        account = world.ask({"model": model, "messages": messages}, after=60)
        if model == "gpt-6-sol":
            assert account.split.read == before
        else:
            step = 2048 if model == "gpt-5.5" else 128
            assert account.split.read == (before // step * step if before >= max(1024, step) else 0)
        before = account.split.prompt_tokens
        messages.append(message("assistant", "ok"))


@settings(max_examples=60, deadline=None)
@given(BODIES, st.integers(1, 50_000))
def test_the_providers_own_count_scales_an_account_and_keeps_the_law(body: dict[str, Any], total: int) -> None:
    rules, entries = OpenAIRules(), MemoryEntries()
    prompt = rules.prompt(body, scope="s", counter=Letters()).scaled(total)
    verdict = rules.judge(prompt, entries, NOVEMBER)
    entries.put(verdict.written)
    again = rules.judge(prompt, entries, NOVEMBER + 60, earlier=prompt).account
    assert again.split.prompt_tokens == prompt.tokens
    assert again.split.read >= verdict.account.split.written_tokens


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda child: st.lists(child, max_size=3) | st.dictionaries(st.text(max_size=5), child, max_size=3),
                    max_leaves=8)  # fmt: skip
NAMES = st.sampled_from(["messages", "input", "tools", "instructions", "prompt_cache_options", "prompt_cache_retention",
                         "reasoning", "text", "prompt_cache_key", "response_format"])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(MODELS, st.dictionaries(NAMES, JSON, max_size=4), st.sampled_from(["", "chat", "responses"]))
def test_any_body_is_read_or_refused(model: str, fields: dict[str, Any], api: str) -> None:
    rules = OpenAIRules()
    try:
        prompt = rules.prompt({"model": model, **fields}, scope="s", counter=Letters(), api=api)
    except InvalidRequestError:
        return
    rules.judge(prompt, MemoryEntries(), NOVEMBER)


def test_an_unknown_platform_is_a_fault_of_the_caller() -> None:
    with pytest.raises(ValueError, match="use one of openai, azure"):
        OpenAIRules("aws")
