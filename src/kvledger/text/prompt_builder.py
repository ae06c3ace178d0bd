"""From rendered text, which knows its origins, to the tokens of a prompt."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from kvledger.errors import PromptTooLongError
from kvledger.text.prompt import Prompt, Segment
from kvledger.text.tokenizer import Tokenizer
from kvledger.text.traced import TEMPLATE, Traced

CONTEXT = "the model's context, less one token to generate,"

Recall = Callable[[str, Sequence[int]], tuple[int, ...] | None]
"""From the path of a text and the tokens before it to the ids that were sampled for it, where that is known."""


_FAR = 8
"""Characters per token of room from which on a run of text is counted piece by piece before it is read as a whole."""
_PIECE = 4096


def build_prompt(text: Traced, tokenizer: Tokenizer, recall: Recall | None = None, limit: int | None = None) -> Prompt:
    """Tokenise `text`: special tokens where the template wrote them, and whole runs of ordinary text between them.

    A token made of text from two places counts as the template's. Raises `PromptTooLongError` for more than `limit`
    tokens, after work in proportion to `limit` and not to the text.
    """
    builder = _Builder(text, tokenizer, recall, limit)
    at = 0
    for start, end, origin in text.spans():
        if origin == TEMPLATE:
            for begin, stop, token in tokenizer.find_specials(text, start, end):
                builder.add_run(at, begin)
                builder.add_tokens([token], TEMPLATE)
                at = stop
    builder.add_run(at, len(text))
    return builder.prompt()


class _Builder:
    """A prompt in the making."""

    def __init__(self, text: Traced, tokenizer: Tokenizer, recall: Recall | None, limit: int | None) -> None:
        self._text = text
        self._limit = limit
        self._tokenizer = tokenizer
        self._recall = recall
        self._spans = list(text.spans())
        self._span_starts = [start for start, _, _ in self._spans]
        self._tokens = array("I")
        self._segments: list[Segment] = []

    def prompt(self) -> Prompt:
        return Prompt(tuple(self._tokens), tuple(self._segments))

    def add_tokens(self, tokens: Sequence[int], path: str) -> None:
        if not tokens:
            return
        start = len(self._tokens)
        if self._segments and self._segments[-1].path == path:
            start = self._segments.pop().start
        self._tokens.extend(tokens)
        if self._limit is not None and len(self._tokens) > self._limit:
            raise PromptTooLongError(len(self._tokens), self._limit, CONTEXT, roughly="at least")
        self._segments.append(Segment(start, len(self._tokens), path))

    def add_run(self, start: int, end: int) -> None:
        """Add characters `start` to `end`, all ordinary text. The run begins the text or follows a special token."""
        at = start
        for begin, stop, origin in self._overlapping(start, end) if self._recall else ():
            if self._recall is None or origin is None or origin == TEMPLATE:
                continue
            head = self._encode(at, begin, start)
            sampled = self._recall(origin, self._tokens + array("I", head[0]))
            if sampled is None:
                continue
            answer, length = spoken(self._tokenizer, sampled, str.__getitem__(self._text, slice(begin, stop)))
            self._add_encoded(head, at)
            self.add_tokens(answer, origin)
            at = begin + length
        self._add_encoded(self._encode(at, end, start), at)

    def _encode(self, at: int, end: int, run_start: int) -> tuple[list[int], list[tuple[int, int]]]:
        text = str.__getitem__(self._text, slice(at, end))
        if self._limit is not None and len(text) > _FAR * self._limit:
            self._refuse_far_too_long(text, self._limit)
        return self._tokenizer.encode_run(text, after_special=run_start > 0, after_text=at > run_start)

    def _refuse_far_too_long(self, text: str, limit: int) -> None:
        """Cutting a text into pieces adds a few tokens at every cut, so only twice the limit is proof enough.

        Counting goes on for a while after that, to tell people how much too long their text is.
        """
        counted = 0
        for at in range(0, len(text), _PIECE):
            counted += len(self._tokenizer.encode_run(text[at : at + _PIECE], after_text=True)[0])
            if counted > 32 * limit:
                raise PromptTooLongError(counted, limit, CONTEXT, roughly="at least")
        if counted > 2 * limit:
            raise PromptTooLongError(counted, limit, CONTEXT, roughly="about")

    def _add_encoded(self, encoded: tuple[list[int], list[tuple[int, int]]], at: int) -> None:
        """Add the tokens of text that begins at character `at`, each under the path it came from."""
        tokens, offsets = encoded
        if not tokens:
            return
        starts, ends = [at + start for start, _ in offsets], [at + end for _, end in offsets]
        first = 0
        for _, stop, origin in self._overlapping(at, max(ends[-1], at + 1)):
            last = bisect_left(starts, stop, first)
            pure = last
            while pure > first and ends[pure - 1] > stop:
                pure -= 1
            self.add_tokens(tokens[first:pure], origin or TEMPLATE)
            self.add_tokens(tokens[pure:last], TEMPLATE)
            first = last

    def _overlapping(self, start: int, end: int) -> list[tuple[int, int, str | None]]:
        first = max(bisect_right(self._span_starts, start) - 1, 0)
        return self._spans[first : bisect_left(self._span_starts, end, first)]


def spoken(tokenizer: Tokenizer, sampled: Sequence[int], text: str) -> tuple[Sequence[int], int]:
    """Return the sampled ids that `text` begins with, and how many of its characters they are.

    All of them if `text` is what they show; fewer where a stop string or the template cut it. The token that ended
    the turn is left to the template.
    """
    if sampled and sampled[-1] in tokenizer.eos_ids:
        sampled = sampled[:-1]
    shown = [b"" if token in tokenizer.special_ids else tokenizer.token_bytes(token) for token in sampled]
    if b"".join(shown).decode("utf-8", "replace") == text:
        return sampled, len(text)
    data = text.encode()
    at = kept = length = 0
    for count, piece in enumerate(shown, 1):
        if not data.startswith(piece, at):
            break
        at += len(piece)
        if at == len(data) or data[at] & 0xC0 != 0x80:  # between two characters
            kept, length = count, at
    return sampled[:kept], len(data[:length].decode())
