"""Tokens as they are sampled, to text as it can be shown."""

from __future__ import annotations

import codecs

from kvledger.text.tokenizer import Tokenizer


class TextStream:
    """Turns one sequence of tokens into text piece by piece, never showing half a character.

    Special tokens show as nothing. All pieces together are the text of the other tokens, bytes that are not UTF-8
    replaced by U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Take one more token; return the text that is now certain, which may be empty."""
        if token in self._tokenizer.special_ids:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """Return what was held back: U+FFFD if the sequence ended inside a character, or nothing."""
        return self._decoder.decode(b"", final=True)
