"""Merges as JSON and as pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvledger.explain.bpe import MergeTable, Training, Word
from kvledger.page.blocks import Block, Heading, LineChart, Page, Paragraph, Series, Table


def words_record(words: Sequence[Word], ids: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Words as plain values, in the alphabet of the vocabulary."""
    return [
        {
            "word": word.text,
            "whole": word.is_whole,
            "letters": list(word.letters),
            "merges": [
                {"pair": list(merge.pair), "rank": merge.rank, "pieces": list(merge.pieces)} for merge in word.merges
            ],
            "pieces": list(word.pieces),
            "ids": list(own),
        }
        for word, own in zip(words, ids, strict=True)
    ]


def training_record(training: Training) -> dict[str, Any]:
    """A training as plain values."""
    return {
        "words": training.num_words,
        "alphabet": list(training.alphabet),
        "tokens_at_first": training.num_tokens,
        "merges": [
            {"pair": list(step.pair), "count": step.count, "tokens_left": step.tokens_left} for step in training.steps
        ],
        "vocabulary": training.ids,
    }


def bpe_page(table: MergeTable, words: Sequence[Word], model_name: str) -> Page:
    """A text under a model's own merges, for a person."""
    ids = [table.ids(word) for word in words]
    blocks: list[Block] = [
        Paragraph(
            f"{model_name} cuts the text into words, and each word into letters of its alphabet (a space is"
            " written \u0120 or \u2581). Then the pair that was learnt first is merged, again and again, until no pair"
            " of neighbours is in the list of merges."
        )
    ]
    return Page("Byte-pair encoding, merge by merge", [*blocks, *_words(words, ids)])


def training_page(training: Training, words: Sequence[Word]) -> Page:
    """A training and, if there is one, a text under what it learnt, for a person."""
    rows = [
        (str(i + 1), *map(_shown, step.pair), _shown("".join(step.pair)), f"{step.count:,}", f"{step.tokens_left:,}")
        for i, step in enumerate(training.steps)
    ]
    blocks: list[Block] = [
        Paragraph(
            f"{training.num_words:,} words, {len(training.alphabet)} different letters, {training.num_tokens:,} tokens"
            " at first. Each step merges the pair of neighbours that stands most often in the words, everywhere."
        ),
        Table(("step", "left", "right", "new piece", "times", "tokens left"), rows, numeric=(0, 4, 5)),
    ]
    if len(training.steps) > 1:
        points = [(float(i + 1), float(step.tokens_left)) for i, step in enumerate(training.steps)]
        blocks.append(
            LineChart(
                "Tokens of the text",
                "merges",
                "tokens",
                [Series("tokens", [(0.0, float(training.num_tokens)), *points])],
            )
        )
    if words:
        known = training.ids
        ids = [[known[piece] for piece in word.pieces if piece in known] for word in words]
        blocks += [Heading("A text in this vocabulary"), *_words(words, ids)]
    return Page("Training a vocabulary, step by step", blocks)


def _words(words: Sequence[Word], ids: Sequence[Sequence[int]]) -> list[Block]:
    blocks: list[Block] = []
    for word, own in zip(words, ids, strict=True):
        blocks.append(Heading(_shown(word.text)))
        if word.is_whole:
            blocks.append(Paragraph("In the vocabulary as it stands, and taken without merging."))
        else:
            rows = [("", "", "", _joined(word.letters))]
            rows += [
                (
                    str(i + 1),
                    f"{_shown(merge.pair[0])} + {_shown(merge.pair[1])}",
                    str(merge.rank),
                    _joined(merge.pieces),
                )
                for i, merge in enumerate(word.merges)
            ]
            blocks.append(Table(("", "merge", "rank", "pieces"), rows, numeric=(0, 2)))
        blocks.append(Paragraph("ids " + " ".join(map(str, own))))
    total = sum(len(own) for own in ids)
    blocks.append(Paragraph(f"{len(words)} words, {total} tokens."))
    return blocks


def _joined(pieces: Sequence[str]) -> str:
    return "  ".join(map(_shown, pieces))


def _shown(piece: str) -> str:
    """A piece in its alphabet; what a terminal would obey is spelt out."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in piece)
