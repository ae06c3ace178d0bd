"""Text to token ids and back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.text.gguf_vocabulary import gguf_vocabulary
from kvledger.text.json_vocabulary import json_vocabulary
from kvledger.text.vocabulary import SPACE_MARK, Vocabulary


class Tokenizer:
    """A model's tokenizer. Immutable once built, and safe to use from several threads.

    Ordinary text is encoded byte for byte: what `encode` takes, `decode` gives back exactly (after a leading space
    where the vocabulary puts one). A special token such as `<|im_end|>` is never produced from text unless asked for.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._backend = vocabulary.backend
        self._pieces = vocabulary.pieces
        self._special_pattern = _special_pattern(vocabulary)
        self.vocab_size = len(vocabulary.pieces)
        self.bos_id = vocabulary.bos_id
        self.eos_ids = vocabulary.eos_ids
        self.special_ids = frozenset(special.id for special in vocabulary.specials.values())
        self.adds_bos = vocabulary.adds_bos
        self.names = vocabulary.names
        self.chat_template = vocabulary.chat_template
        self.fingerprint = vocabulary.fingerprint

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], path: Path) -> Tokenizer:
        """Build the tokenizer that the metadata of the GGUF file at `path` describes; raises `ModelFileError`."""
        return cls(gguf_vocabulary(metadata, path))

    @classmethod
    def from_file(cls, path: Path | str, config: Path | str | None = None) -> Tokenizer:
        """Read a `tokenizer.json` and the `tokenizer_config.json` beside it; raises `ModelFileError`."""
        return cls(json_vocabulary(Path(path), None if config is None else Path(config)))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`. With `special` the names of special tokens in it become those tokens.

        Raises `InvalidRequestError` for text that this vocabulary cannot write.
        """
        if not special:
            return self.encode_run(text)[0]
        tokens: list[int] = []
        at = 0
        for start, end, token in self.find_specials(text):
            tokens += self.encode_run(text[at:start], after_special=at > 0)[0]
            tokens.append(token)
            at = end
        return tokens + self.encode_run(text[at:], after_special=at > 0)[0]

    def encode_run(
        self, text: str, *, after_special: bool = False, after_text: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of ordinary text, and for each the characters (start, end) of `text` that it came from.

        `after_special` and `after_text` say what stands before the run; some vocabularies begin a text with a space.
        """
        self.check(text)
        if not text:
            return [], []
        if self._vocabulary.space_mark and SPACE_MARK in text:
            return self._encode_marks(text, after_special, after_text)
        space = not after_text and self._vocabulary.space_prefix.applies(text, after_special=after_special)
        # A batch of one: unlike `encode`, it lets other threads run while a long text is read.
        encoding = self._backend.encode_batch([f" {text}" if space else text], add_special_tokens=False)[0]
        spans = encoding.offsets
        if space:
            spans = [(max(start - 1, 0), end - 1) for start, end in spans]
        return encoding.ids, spans

    def _encode_marks(
        self, text: str, after_special: bool, after_text: bool
    ) -> tuple[list[int], list[tuple[int, int]]]:
        # In a SentencePiece vocabulary U+2581 stands for a space, so the character itself goes byte by byte.
        names = (f"<0x{byte:02X}>" for byte in SPACE_MARK.encode())
        mark = [id for name in names if (id := self._backend.token_to_id(name)) is not None]
        tokens: list[int] = []
        spans: list[tuple[int, int]] = []
        at = 0
        for part in text.split(SPACE_MARK):
            if at > 0:
                tokens += mark
                spans += [(at - 1, at)] * len(mark)
            ids, offsets = self.encode_run(part, after_special=after_special, after_text=after_text or at > 0)
            tokens += ids
            spans += [(at + start, at + end) for start, end in offsets]
            at += len(part) + 1
        return tokens, spans

    def find_specials(self, text: str, start: int = 0, end: int | None = None) -> Iterable[tuple[int, int, int]]:
        """Yield (start, end, id) of every special token named in `text[start:end]`, leftmost and longest first."""
        if self._special_pattern is None:
            return
        for match in self._special_pattern.finditer(text, start, len(text) if end is None else end):
            yield match.start(), match.end(), self._special_id(match.group())

    def _special_id(self, matched: str) -> int:
        specials = self._vocabulary.specials
        return (specials.get(matched) or specials[matched.strip()]).id  # some swallow the white space around them

    def check(self, text: str, path: str | None = None) -> None:
        """Raise `InvalidRequestError`, naming `path`, unless every character of `text` can be encoded."""
        where = f"`{path}`" if path else "The text"
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"{where} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, which is"
                " not text: remove it or send the whole pair.",
                param=path,
            ) from None
        missing = self._vocabulary.missing_bytes
        if missing and len(data.translate(None, missing)) != len(data):
            at = next(i for i, letter in enumerate(text) if any(byte in missing for byte in letter.encode()))
            raise InvalidRequestError(
                f"{where} holds the character U+{ord(text[at]):04X} at position {at}, for which this model's vocabulary"
                " has no token: remove it.",
                param=path,
            )

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes of a token: of a special one, those of its name.

        A model may have more outputs than its tokenizer has tokens; the surplus ids have no bytes.
        """
        if token < 0:
            raise ValueError(f"{token} is not a token id")
        return self._pieces[token] if token < self.vocab_size else b""

    def backend_json(self) -> str:
        """Return vocabulary, merges and word split as the `tokenizers` library writes them, special tokens left out."""
        return self._backend.to_str()

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens`, special ones by name; bytes that are not UTF-8 become U+FFFD."""
        return b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")


def _special_pattern(vocabulary: Vocabulary) -> re.Pattern[str] | None:
    def source(text: str) -> str:
        special = vocabulary.specials[text]
        return (r"\s*" if special.left else "") + re.escape(text) + (r"\s*" if special.right else "")

    names: Sequence[str] = sorted(vocabulary.specials, key=len, reverse=True)
    return re.compile("|".join(map(source, names))) if names else None
