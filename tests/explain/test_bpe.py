"""Merges against the tokenizer itself, and training against the library's own trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers

from kvledger.cli.tokens import load_tokenizer
from kvledger.errors import ExplainError
from kvledger.explain.bpe import MergeTable, merge_word, split_words, train
from kvledger.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_level


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(str(smollm2_path))


def test_merges_by_hand():
    """h e, l l, he ll, hell o are ranks 0 to 3 of the small vocabulary."""
    (word,) = MergeTable(byte_level()).words("hello")
    assert [merge.pair for merge in word.merges] == [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    assert [merge.rank for merge in word.merges] == [0, 1, 2, 3]
    assert word.merges[1].pieces == ("he", "ll", "o")
    assert word.pieces == ("hello",)


def test_a_word_without_merges_is_its_letters():
    (word,) = MergeTable(byte_level()).words("xyz")
    assert word.merges == ()
    assert word.pieces == ("x", "y", "z")


def test_what_the_tokenizer_takes_without_merging_is_said():
    with pytest.raises(ExplainError, match="without merging"):
        MergeTable(byte_level()).words("a <think> b")


@pytest.mark.parametrize(
    "text",
    ["unbelievable caching", "The cat sat on the mat.", "naïve façade 12345", "  two  spaces\n\n", "日本語 🙂", "a"],
)
def test_the_merges_of_smollm2_give_its_own_ids(smollm2, text):
    table = MergeTable(smollm2)
    assert [id for word in table.words(text) for id in table.ids(word)] == smollm2.encode(text)


@given(st.text(max_size=40))
def test_any_text_merges_to_what_the_tokenizer_says(text):
    tokenizer = byte_level()
    if "<think>" in text:
        return
    table = MergeTable(tokenizer)
    assert [id for word in table.words(text) for id in table.ids(word)] == tokenizer.encode(text)


def test_training_by_hand():
    """at stands 3 times, then c at twice."""
    training = train(["cat", "cat", "hat"], 2)
    assert [(step.pair, step.count, step.tokens_left) for step in training.steps] == [
        (("a", "t"), 3, 6),
        (("c", "at"), 2, 4),
    ]
    assert training.num_tokens == 9
    assert training.ids == {"a": 0, "c": 1, "h": 2, "t": 3, "at": 4, "cat": 5}
    assert merge_word("hat", "hat", training.ranks).pieces == ("h", "at")


def test_training_ends_when_nothing_is_left_to_merge():
    assert len(train(["ab"], 10).steps) == 1


def test_what_cannot_be_learnt_from():
    with pytest.raises(ExplainError, match="no words"):
        train([], 3)
    with pytest.raises(ExplainError, match="--merges is -1"):
        train(["a"], -1)


@given(st.lists(st.text("abcd ", min_size=1, max_size=12), min_size=1, max_size=8), st.integers(1, 12))
def test_training_learns_what_the_librarys_trainer_learns(lines, num_merges):
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = [word for line in lines for word in split_words(backend, line)]
    training = train(words, num_merges)
    trainer = trainers.BpeTrainer(vocab_size=len(training.alphabet) + num_merges, show_progress=False)
    backend.train_from_iterator(lines, trainer)
    assert backend.get_vocab() == training.ids
