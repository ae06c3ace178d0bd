"""What a tokenizer is made of, whatever file it was read from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer as Backend

from kvledger.errors import ModelFileError

SPACE_MARK = "\u2581"
"""How SentencePiece vocabularies write a space."""


@dataclass(frozen=True)
class SpacePrefix:
    """Where text is encoded as if a space stood before it.

    `at_start`: at the very start of a text. `after_special`: after a special token. `doubled`: even where the text
    begins with a space itself.
    """

    at_start: bool = False
    after_special: bool = False
    doubled: bool = True

    def applies(self, text: str, *, after_special: bool) -> bool:
        """Whether a space is put before `text`."""
        wanted = self.after_special if after_special else self.at_start
        return wanted and (self.doubled or not text.startswith(" "))


@dataclass(frozen=True)
class Special:
    """A token that stands for no text of its own. `left`, `right`: it swallows the white space on that side."""

    id: int
    left: bool = False
    right: bool = False


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Everything that decides how text becomes tokens, and what else a model file says about its tokens.

    `backend` turns ordinary text into ids and never yields a special one. `pieces[id]` are the bytes of a token (empty
    where an id has none); of a special token, those of its name. `missing_bytes` cannot be written in this vocabulary.
    `space_mark`: pieces write a space as U+2581. `names` holds what templates know as `bos_token`, `eos_token`, ...
    """

    backend: Backend
    pieces: Sequence[bytes]
    specials: Mapping[str, Special]
    missing_bytes: bytes
    space_mark: bool
    space_prefix: SpacePrefix
    bos_id: int | None
    eos_ids: frozenset[int]
    adds_bos: bool
    names: Mapping[str, str]
    chat_template: str | None
    fingerprint: str


# The alphabet in which byte-level vocabularies write bytes: printable Latin-1 characters stand for themselves, the
# other bytes for U+0100 and on, in order (Radford et al., GPT-2).
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_ALPHABET = {byte: chr(byte) for byte in _PRINTABLE} | {byte: chr(256 + i) for i, byte in enumerate(_OTHERS)}
_LATIN = {ord(letter): chr(byte) for byte, letter in _ALPHABET.items()}


def byte_level_pieces(texts: Sequence[str], literal: Iterable[int]) -> list[bytes]:
    """Return the bytes of every token of a byte-level vocabulary; those in `literal` are plain text."""
    pieces = []
    joined = "".join(texts).translate(_LATIN).encode("latin-1", "replace")
    at = 0
    for text in texts:
        pieces.append(joined[at : at + len(text)])
        at += len(text)
    for id in literal:
        pieces[id] = texts[id].encode()
    return pieces


def missing_byte_letters(texts: Collection[str]) -> bytes:
    """Return the bytes for which a byte-level vocabulary has no token, and which are therefore lost to it."""
    return bytes(byte for byte, letter in _ALPHABET.items() if letter not in texts)


def space_mark_pieces(texts: Sequence[str], literal: Iterable[int]) -> list[bytes]:
    """Return the bytes of every token of a SentencePiece vocabulary; those in `literal` are plain text."""
    pieces = [text.replace(SPACE_MARK, " ").encode() for text in texts]
    for id in literal:
        pieces[id] = texts[id].encode()
    for id, text in enumerate(texts):
        if text.startswith("<0x") and text in FALLBACK_BYTES:
            pieces[id] = FALLBACK_BYTES[text]
    return pieces


FALLBACK_BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
"""Tokens for single bytes in SentencePiece vocabularies."""


def check_fallback(texts: Collection[str], path: Path) -> None:
    """Raise `ModelFileError` unless a SentencePiece vocabulary has a token for every byte."""
    missing = next((text for text in FALLBACK_BYTES if text not in texts), None)
    if missing is not None:
        raise ModelFileError(f"{path} has no token {missing}: vocabularies without byte fallback are not supported.")


def build(path: Path, make: Callable[[], Backend]) -> Backend:
    """Call `make`, turning whatever the `tokenizers` library finds wrong into a `ModelFileError`."""
    try:
        return make()
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(f"{path} holds a tokenizer that cannot be built: {error}.") from error


# Tokens that end a turn in the chat formats of the model families, whatever a file names as its end of sequence.
_TURN_ENDS = {
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|eot|>"),
    *("<end_of_turn>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
}


def turn_ends(specials: Mapping[str, Special], named: Iterable[int | None]) -> frozenset[int]:
    """Return the ids that end a turn: those a file names, and the well-known ones among its special tokens."""
    known = {special.id for text, special in specials.items() if text in _TURN_ENDS}
    return frozenset(known.union(id for id in named if id is not None))
