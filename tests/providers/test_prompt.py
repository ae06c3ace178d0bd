"""The values that every rulebook shares: parts, their digests, differences, histories, entries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.cache.digest import fields_digest
from kvledger.ledger.account import Split, Usage
from kvledger.providers.difference import EXCERPT, common_characters, excerpt, first_difference
from kvledger.providers.entries import Entry, MemoryEntries
from kvledger.providers.history import History
from kvledger.providers.prompt import Breakpoint, Level, Part, ProviderPrompt, prefix_digests

ROOT = fields_digest("test")


def prompt(*texts: str, scope: str = "alice", level: Level = Level.MESSAGES) -> ProviderPrompt:
    parts = tuple(Part(f"messages[{i}]", level, "text", text, len(text), "user") for i, text in enumerate(texts))
    return ProviderPrompt("anthropic", "m", scope, parts)


def test_a_split_must_add_up() -> None:
    assert Split(10, read=4, written={"5m": 3, "1h": 2}, fresh=1).written_tokens == 5
    with pytest.raises(ValueError, match="read 4 \\+ fresh 5 is not the prompt's 10"):
        Split(10, read=4, fresh=5)
    with pytest.raises(ValueError, match="negative"):
        Split(10, read=-1, fresh=11)


def test_reasoning_is_part_of_the_output() -> None:
    with pytest.raises(ValueError, match="not a possible usage"):
        Usage(Split(1, fresh=1), output=3, reasoning=4)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 5000))
def test_scaled_parts_sum_to_the_total(tokens: list[int], total: int) -> None:
    parts = tuple(Part(str(i), Level.MESSAGES, "text", str(i), n) for i, n in enumerate(tokens))
    scaled = ProviderPrompt("p", "m", "s", parts).scaled(total)
    assert scaled.tokens == (total if sum(tokens) else 0)
    for before, after in zip(parts, scaled.parts, strict=True):
        assert abs(after.tokens - before.tokens * total / max(1, sum(tokens))) <= 1


def test_a_mark_and_a_place_do_not_change_a_part() -> None:
    plain = Part("messages[0]", Level.MESSAGES, "text", "x", 1, "user")
    marked = Part("messages[7]", Level.MESSAGES, "text", "x", 2, "user", Breakpoint("1h"))
    assert plain.identity == marked.identity
    assert plain.identity != Part("messages[0]", Level.MESSAGES, "text", "x", 1, "assistant").identity


@given(st.lists(st.text(max_size=3), min_size=1, max_size=6), st.data())
def test_changing_any_part_changes_its_prefix_and_every_later_one(texts: list[str], data: st.DataObject) -> None:
    changed = data.draw(st.integers(0, len(texts) - 1))
    other = [*texts[:changed], texts[changed] + "!", *texts[changed + 1 :]]
    before, after = (prefix_digests(ROOT, prompt(*each).parts) for each in (texts, other))
    assert before[:changed] == after[:changed]
    assert not set(before[changed:]) & set(after[changed:])


def test_a_level_s_settings_spare_what_comes_before_it() -> None:
    parts = (*prompt("t", level=Level.TOOLS).parts, *prompt("u").parts)
    on, off = (prefix_digests(ROOT, parts, {Level.SYSTEM: value}) for value in ("search on", "search off"))
    assert on[0] == off[0]
    assert on[1] != off[1]


def test_the_first_difference_has_its_place_and_both_sides() -> None:
    found = first_difference(prompt("same", "It is 10:00 now"), prompt("same", "It is 10:05 now"))
    assert found is not None
    assert (found.path, found.offset, found.shared_tokens) == ("messages[1]", 10, 4)
    assert (found.before, found.after) == ("It is 10:00 now", "It is 10:05 now")


def test_a_continued_prompt_does_not_differ_and_a_shortened_one_does() -> None:
    assert first_difference(prompt("a"), prompt("a", "b")) is None
    found = first_difference(prompt("a", "b"), prompt("a"))
    assert found is not None
    assert (found.path, found.before, found.after) == ("messages[1]", "b", "")


@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_common_characters_are_counted_one_by_one(one: str, other: str) -> None:
    count = common_characters(one, other)
    assert one[:count] == other[:count]
    assert count == min(len(one), len(other)) or one[count] != other[count]


@given(st.text(max_size=300), st.integers(0, 300))
def test_an_excerpt_is_short_and_holds_the_place(text: str, offset: int) -> None:
    shown = excerpt(text, min(offset, len(text)))
    assert len(shown) <= EXCERPT
    if len(text) <= EXCERPT:
        assert shown == text


def test_the_nearest_prompt_shares_the_most_and_is_the_latest() -> None:
    history = History(capacity=3)
    first, second, third = prompt("a", "b"), prompt("a", "b", "c"), prompt("a", "x")
    for each in (first, second, third):
        history.add(each)
    assert history.nearest(prompt("a", "b", "d")) is second
    assert history.nearest(prompt("a")) is third
    assert history.nearest(prompt("q")) is third
    assert history.nearest(prompt("a", scope="bob")) is None
    history.add(prompt("z"))
    history.add(prompt("z"))
    assert history.nearest(prompt("a", "b")) is third


def test_entries_renew_and_the_oldest_is_forgotten() -> None:
    entry = Entry(ROOT, 5, "5m", 300.0, 0.0, 0.0, 300.0)
    assert entry.refreshed(100.0).expires_at == 400.0
    assert entry.refreshed(-50.0).expires_at == 300.0
    store = MemoryEntries(capacity=1)
    other = Entry(fields_digest("other"), 5, "5m", 300.0, 0.0, 0.0, 300.0)
    store.put([entry])
    store.put([other])
    assert store.get(entry.digest) is None
    assert store.get(other.digest) is other
    assert len(store) == 1
