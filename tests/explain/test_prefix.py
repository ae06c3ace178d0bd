"""Chains of blocks: what the cache says of two prompts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.cache.miss import MissReason
from kvledger.errors import ExplainError
from kvledger.explain.pieces import read_text
from kvledger.explain.prefix import compare, prefix_page, prefix_record
from kvledger.page.html import render
from tests.text.vocabularies import byte_level

TOKENIZER = byte_level()


def test_where_it_breaks_and_what_is_reused():
    """Letters are tokens here: 10 are the same, in blocks of 4: two blocks shared, two tokens copied."""
    found = compare(TOKENIZER, "abcdabcdabXdabcd", "abcdabcdabYdabcd", block_size=4)
    assert (found.common, found.reused, found.shared, found.partial, found.is_copied) == (10, 10, 2, 2, True)
    assert found.earlier.digests[:2] == found.later.digests[:2]
    assert not set(found.earlier.digests[2:]) & set(found.later.digests[2:])  # the fourth block has the same tokens
    record = prefix_record(found, TOKENIZER)
    assert record["miss"]["reason"] == MissReason.PREFIX_CHANGED.value
    assert (record["miss"]["a_token"]["text"], record["miss"]["b_token"]["text"]) == ("X", "Y")
    page = render(prefix_page(found, TOKENIZER))
    assert "At token 10, in block 2 (2 tokens into it)" in page


def test_equal_texts_after_the_break_are_not_the_same_blocks():
    found = compare(TOKENIZER, "Xbcdabcd", "Ybcdabcd", block_size=4)
    table = next(block for block in prefix_page(found, TOKENIZER).blocks if hasattr(block, "rows"))
    assert [row[3] for row in table.rows] == ["", ""]


def test_the_same_prompt_is_reused_up_to_its_last_token():
    found = compare(TOKENIZER, "abcdabcd", "abcdabcd", block_size=4)
    assert found.reused == 7
    assert found.miss is None
    assert "token by token" in render(prefix_page(found, TOKENIZER))


def test_one_prompt_within_the_other():
    longer = render(prefix_page(compare(TOKENIZER, "abc", "abcdef", block_size=4), TOKENIZER))
    shorter = render(prefix_page(compare(TOKENIZER, "abcdef", "abc", block_size=4), TOKENIZER))
    assert "goes on where A ends, after 3 tokens" in longer
    assert "ends within A, after 3 tokens" in shorter


@given(st.text("abX", min_size=1, max_size=30), st.text("abX", min_size=1, max_size=30), st.integers(1, 8))
def test_reuse_is_the_common_prefix_less_at_most_the_last_token(a, b, block_size):
    found = compare(TOKENIZER, a, b, block_size=block_size)
    assert found.reused == min(found.common, len(found.later.tokens) - 1)
    assert found.shared * block_size + found.partial == found.reused


def test_long_prompts_are_shown_around_the_break():
    found = compare(TOKENIZER, "ab" * 500 + "X", "ab" * 500 + "Y", block_size=4)
    table = next(block for block in prefix_page(found, TOKENIZER).blocks if hasattr(block, "rows"))
    assert len(table.rows) < 15
    assert any(row[1].endswith("more") for row in table.rows)


def test_bad_input(tmp_path):
    with pytest.raises(ExplainError, match="A has no tokens"):
        compare(TOKENIZER, "", "b")
    with pytest.raises(ExplainError, match="--block-size is 0"):
        compare(TOKENIZER, "a", "b", block_size=0)
    with pytest.raises(ExplainError, match="cannot be read"):
        read_text(f"@{tmp_path}/nothing")
    (tmp_path / "binary").write_bytes(b"ab\xff")
    with pytest.raises(ExplainError, match="byte 2 is not UTF-8"):
        read_text(f"@{tmp_path}/binary")
    (tmp_path / "text").write_text("hello")
    assert read_text(f"@{tmp_path}/text") == "hello"
