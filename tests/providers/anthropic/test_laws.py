"""What holds whatever is asked in whatever order."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvledger.ledger.account import BreakReason
from kvledger.providers.anthropic.rules import AnthropicRules
from kvledger.providers.entries import MemoryEntries
from tests.providers.anthropic.world import assistant, body, mark, read, text, tool, user
from tests.providers.letters import NOON, World

MODELS = ("claude-opus-5", "claude-sonnet-5", "claude-haiku-4-5")


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """Few texts and few settings, so that requests often share a start; up to four marks in a lawful order."""
    system = draw(st.lists(st.sampled_from("ab"), max_size=3))
    turns = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=26))
    tools = draw(st.lists(st.sampled_from("tu"), max_size=2, unique=True))
    pieces = len(tools) + len(system) + len(turns)
    marks = sorted(draw(st.sets(st.integers(0, pieces - 1), max_size=4)))
    hours = draw(st.integers(0, len(marks)))
    lifetimes = {place: mark("1h" if number < hours else "5m") for number, place in enumerate(marks)}
    at = iter(range(pieces))
    return body(
        tools=[tool(name, **lifetimes.get(next(at), {})) for name in tools],
        system=[text(letter * 150) | lifetimes.get(next(at), {}) for letter in system],
        messages=[user(text(letter * 150) | lifetimes.get(next(at), {})) for letter in turns],
        model=draw(st.sampled_from(MODELS)),
        tool_choice=draw(st.sampled_from([None, {"type": "any"}])),
        thinking=draw(st.sampled_from([None, {"type": "adaptive"}])),
    )


@given(st.lists(st.tuples(requests(), st.sampled_from([0.0, 1.0, 299.0, 301.0, 4000.0])), min_size=1, max_size=8))
def test_splits_add_up_and_breaks_stay_within_what_was_sent(asked: list[tuple[dict[str, Any], float]]) -> None:
    world, longest = World(AnthropicRules()), 0
    for request, after in asked:
        account = world.ask(request, after=after)
        split = account.split
        assert split.read + split.written_tokens + split.fresh == split.prompt_tokens
        assert split.read <= longest
        assert set(split.written) <= {"5m", "1h"}
        longest = max(longest, split.prompt_tokens)
        assert split.read + sum(each.tokens for each in account.breaks) <= longest
        order = [list(BreakReason).index(each.reason) for each in account.breaks]
        assert order == sorted(order)
        assert all(each.tokens >= 0 and each.detail for each in account.breaks)


@given(requests(), requests(), st.floats(0, 5000))
def test_judging_changes_nothing_and_repeats_itself(first: dict[str, Any], second: dict[str, Any], gap: float) -> None:
    rules, entries = AnthropicRules(), MemoryEntries()
    kept = copy.deepcopy((first, second))
    one, two = read(first), read(second)
    entries.put(rules.judge(one, entries, NOON).written)
    before = dict(entries._entries)
    verdicts = [rules.judge(two, entries, NOON + gap, earlier=one) for _ in range(2)]
    assert verdicts[0] == verdicts[1]
    assert dict(entries._entries) == before
    assert (first, second) == kept


@given(requests(), requests(), st.floats(0, 5000))
def test_knowing_the_earlier_request_explains_and_does_not_change(
    first: dict[str, Any], second: dict[str, Any], gap: float
) -> None:
    rules, entries = AnthropicRules(), MemoryEntries()
    one, two = read(first), read(second)
    entries.put(rules.judge(one, entries, NOON).written)
    told, untold = (rules.judge(two, entries, NOON + gap, earlier=earlier) for earlier in (one, None))
    assert told.account.split == untold.account.split
    assert (told.renewed, told.written) == (untold.renewed, untold.written)


@given(
    st.lists(st.tuples(st.integers(1, 18), st.floats(0, 300)), min_size=1, max_size=8),
    st.booleans(),
    st.sampled_from(MODELS),
)
def test_an_append_only_conversation_reads_all_that_it_wrote(
    turns: list[tuple[int, float]], automatic: bool, model: str
) -> None:
    """With the mark on the last block, at most 19 blocks a turn and no pause beyond the lifetime."""
    world, messages, written = World(AnthropicRules()), [user("x" * 5000)], 0
    for number, (added, gap) in enumerate(turns):
        request = body(copy.deepcopy(messages), model=model, **(mark() if automatic else {}))
        if not automatic:
            request["messages"][-1]["content"][-1] |= mark()
        account = world.ask(request, after=gap)
        assert (account.split.read, account.split.fresh) == (written, 0)
        assert [each.reason for each in account.breaks] == ([] if written else [BreakReason.COLD])
        written = account.split.prompt_tokens
        messages += [assistant(f"answer {number}"), user(*(f"{number}.{index}" for index in range(added)))]


@given(requests(), st.integers(0, 30))
def test_a_longer_wait_never_reads_more(request: dict[str, Any], steps: int) -> None:
    rules, entries, prompt = AnthropicRules(), MemoryEntries(), read(request)
    entries.put(rules.judge(prompt, entries, NOON).written)
    gaps = [steps * 150.0, (steps + 1) * 150.0]
    sooner, later = (rules.judge(prompt, entries, NOON + gap).account.split.read for gap in gaps)
    assert later <= sooner
