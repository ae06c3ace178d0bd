"""Byte-pair encoding (Sennrich, Haddow and Birch, arXiv:1508.07909) merge by merge: with a model's own merges, or
with those of a tiny vocabulary learnt before one's eyes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers, pre_tokenizers

from kvledger.errors import ExplainError
from kvledger.text.tokenizer import Tokenizer

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge within a word: the pair, its rank (0 was learnt first), and the pieces after it."""

    pair: Pair
    rank: int
    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A word, its letters at first, and the merges in order. `is_whole`: it is in the vocabulary as it stands, and
    this tokenizer then asks for no merges."""

    text: str
    letters: tuple[str, ...]
    merges: tuple[Merge, ...]
    is_whole: bool = False

    @property
    def pieces(self) -> tuple[str, ...]:
        """What is left when no pair can be merged."""
        if self.is_whole:
            return (self.text,)
        return self.merges[-1].pieces if self.merges else self.letters


@dataclass(frozen=True, slots=True)
class Learnt:
    """One step of training: the most frequent pair, how often it stands in the text, and the tokens left after it."""

    pair: Pair
    count: int
    tokens_left: int


@dataclass(frozen=True, slots=True)
class Training:
    """Merges learnt from a text of `num_words` words, `num_tokens` letters at first, in an alphabet of `alphabet`."""

    num_words: int
    alphabet: tuple[str, ...]
    num_tokens: int
    steps: tuple[Learnt, ...]

    @property
    def ranks(self) -> dict[Pair, int]:
        """Each pair with its place in the order."""
        return {step.pair: rank for rank, step in enumerate(self.steps)}

    @property
    def ids(self) -> dict[str, int]:
        """The vocabulary: letters first, then merged pieces in order."""
        pieces = dict.fromkeys((*self.alphabet, *("".join(step.pair) for step in self.steps)))
        return {piece: id for id, piece in enumerate(pieces)}


def merge_word(word: str, letters: Sequence[str], ranks: Mapping[Pair, int]) -> Word:
    """Merge the pair of the lowest rank, leftmost first, until none is left that has one."""
    pieces = list(letters)
    merges: list[Merge] = []
    while True:
        pairs = [
            (rank, i) for i in range(len(pieces) - 1) if (rank := ranks.get((pieces[i], pieces[i + 1]))) is not None
        ]
        if not pairs:
            return Word(word, tuple(letters), tuple(merges))
        rank, at = min(pairs)
        pair = (pieces[at], pieces[at + 1])
        pieces[at : at + 2] = ["".join(pair)]
        merges.append(Merge(pair, rank, tuple(pieces)))


class MergeTable:
    """A model's merges and its way of cutting a text into words, read from its tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises `ExplainError` for a tokenizer that is not byte-pair encoding."""
        described = tokenizer.backend_json()
        model = json.loads(described)["model"]
        if model.get("type") != "BPE":
            raise ExplainError(f"This model's tokenizer is {model.get('type')}, not byte-pair encoding.")
        self._tokenizer = tokenizer
        self._backend = Backend.from_str(described)
        self._vocabulary: dict[str, int] = model["vocab"]
        self._ranks = {_pair(merge): rank for rank, merge in enumerate(model["merges"])}
        self._takes_whole_words = bool(model.get("ignore_merges"))
        self._has_byte_fallback = bool(model.get("byte_fallback"))

    def words(self, text: str) -> list[Word]:
        """The words of `text` and their merges; what comes out is checked against the tokenizer itself.

        Raises `ExplainError` where the tokenizer does something besides merging.
        """
        expected = self._tokenizer.encode(text)
        for start in ("", " "):  # some vocabularies begin a text with a space
            found = [self._merged(word) for word in split_words(self._backend, start + text)]
            if [id for word in found for id in self.ids(word)] == expected:
                return found
        raise ExplainError(
            "This text holds something that the tokenizer takes as it is, without merging: leave it out."
        )

    def ids(self, word: Word) -> list[int]:
        """The ids of a word's pieces; a letter that is not in the vocabulary is spelt in bytes."""
        ids = []
        for piece in word.pieces:
            if piece in self._vocabulary:
                ids.append(self._vocabulary[piece])
            elif self._has_byte_fallback:
                ids += [self._vocabulary[f"<0x{byte:02X}>"] for byte in piece.encode()]
        return ids

    @property
    def backend(self) -> Backend:
        """The `tokenizers` object, for its word split."""
        return self._backend

    def _merged(self, word: str) -> Word:
        if self._takes_whole_words and word in self._vocabulary:
            return Word(word, tuple(word), (), is_whole=True)
        return merge_word(word, tuple(word), self._ranks)


def split_words(backend: Backend, text: str) -> list[str]:
    """The words within which merges happen, in the alphabet of the vocabulary."""
    normalizer: normalizers.Normalizer | None = backend.normalizer
    splitter: pre_tokenizers.PreTokenizer | None = backend.pre_tokenizer
    if normalizer is not None:
        text = normalizer.normalize_str(text)
    if splitter is None:
        return [text] if text else []
    return [word for word, _ in splitter.pre_tokenize_str(text)]


def train(words: Sequence[str], num_merges: int) -> Training:
    """Learn up to `num_merges` merges: each time the pair that stands most often in the words, of equals the one whose
    pieces were known first. This is the order of the `tokenizers` library's trainer.
    """
    if num_merges < 0:
        raise ExplainError(f"--merges is {num_merges}: zero or more is needed.")
    counts = Counter(words)
    if not counts:
        raise ExplainError("The text to learn from has no words: give a file with some text.")
    alphabet = tuple(sorted({letter for word in counts for letter in word}))
    ids = {letter: id for id, letter in enumerate(alphabet)}
    pieces = {word: list(word) for word in counts}
    num_tokens = sum(len(word) * count for word, count in counts.items())
    steps: list[Learnt] = []
    left = num_tokens
    while len(steps) < num_merges:
        pairs: Counter[Pair] = Counter()
        for word, count in counts.items():
            for pair in zip(pieces[word], pieces[word][1:], strict=False):
                pairs[pair] += count
        if not pairs:
            break
        pair = min(pairs, key=lambda each: (-pairs[each], ids[each[0]], ids[each[1]]))
        for word, count in counts.items():
            before = len(pieces[word])
            pieces[word] = _joined(pieces[word], pair)
            left -= (before - len(pieces[word])) * count
        ids.setdefault("".join(pair), len(ids))
        steps.append(Learnt(pair, pairs[pair], left))
    return Training(len(words), alphabet, num_tokens, tuple(steps))


def _joined(pieces: list[str], pair: Pair) -> list[str]:
    """Every occurrence of `pair` merged, from the left."""
    result: list[str] = []
    at = 0
    while at < len(pieces):
        if at + 1 < len(pieces) and (pieces[at], pieces[at + 1]) == pair:
            result.append("".join(pair))
            at += 2
        else:
            result.append(pieces[at])
            at += 1
    return result


def _pair(merge: str | list[str]) -> Pair:
    """A merge as `tokenizer.json` writes it: two texts, or in older files one with a space between."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right
