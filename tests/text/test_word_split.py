"""How words are split, by hand, for every name that is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.text.word_split import WORD_SPLITS
from tests.text.vocabularies import LETTERS

TEXT = "I'm 1234x  y\n\n WE'LL 漢字ab!!"
GPT2 = ["I", "'m", " 1234", "x", " ", " y", "\n\n", " WE", "'", "LL", " 漢字ab", "!!"]
LLAMA3 = ["I", "'m", " ", "123", "4", "x", " ", " y", "\n\n", " WE", "'LL", " 漢字ab", "!!"]
QWEN2 = ["I", "'m", " ", "1", "2", "3", "4", "x", " ", " y", "\n\n", " WE", "'LL", " 漢字ab", "!!"]
EXPECTED = {
    "default": ["I", "'", "m", " ", "123", "4", "x", " ", " y", "\n\n", " WE", "'", "LL", " 漢字ab", "!!"],
    "gpt2": GPT2,
    "gpt-2": GPT2,
    "smollm": ["I", "'m", " ", "1", "2", "3", "4", "x", " ", " y", "\n\n", " WE", "'", "LL", " 漢字ab", "!!"],
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "llama-bpe": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "tekken": ["I", "'m", " ", "1", "2", "3", "4", "x", " ", " y", "\n\n", " WE", "'LL", " 漢字ab", "!!"],
    "deepseek-llm": ["I", "'", "m", " ", "1234", "x", " ", " y", "\n", "\n", " WE", "'", "LL", " ", "漢字", "ab", "!!"],
    "deepseek-coder": [
        *["I", "'", "m", " ", "1", "2", "3", "4", "x", " ", " y", "\n", "\n", " WE", "'", "LL", " ", "漢字", "ab", "!!"]
    ],
    "deepseek-v3": ["I", "'m", " ", "123", "4", "x", " ", " y", "\n\n", " WE", "'LL", " ", "漢字", "ab", "!!"],
}
BYTE_OF = {letter: byte for byte, letter in LETTERS.items()}


SPLITTERS = {name: split.pre_tokenizer() for name, split in WORD_SPLITS.items()}


def words(name: str, text: str) -> list[str]:
    split = SPLITTERS[name].pre_tokenize_str(text)
    return [bytes(BYTE_OF[letter] for letter in word).decode() for word, _ in split]


@pytest.mark.parametrize("name", WORD_SPLITS)
def test_by_hand(name):
    assert words(name, TEXT) == EXPECTED[name]


@pytest.mark.parametrize("name", WORD_SPLITS)
@given(
    text=st.text(st.characters(exclude_categories=("Cs",))) | st.text(st.sampled_from("aA1 \n\r\t'!漢é"), max_size=30)
)
def test_nothing_is_lost(name, text):
    assert "".join(words(name, text)) == text
