"""The text of one answer as it grows: whole characters only, and nothing that may be the start of a stop string."""

from __future__ import annotations

from kvledger.text.stream import TextStream
from kvledger.text.tokenizer import Tokenizer


class OutputText:
    """Turns sampled tokens into text that can be shown.

    The first stop string to be complete ends the text just before itself; of two that are complete at the same
    character the one that began earlier. So the text depends on the characters alone, not on how tokens cut them.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._stream = TextStream(tokenizer)
        self._stop = stop
        self._held = ""
        self._shown: list[str] = []
        self.stop: str | None = None
        """The stop string that appeared; no more text will come."""

    @property
    def stopped(self) -> bool:
        return self.stop is not None

    @property
    def shown(self) -> str:
        """All text given out so far."""
        return "".join(self._shown)

    def push(self, token: int) -> str:
        """The text that `token` decides: possibly none, possibly that of earlier tokens too."""
        return self._release(self._stream.push(token))

    def finish(self) -> str:
        """The text still held back, now that nothing follows."""
        return self._release(self._stream.finish(), last=True)

    def _release(self, text: str, *, last: bool = False) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        ends = [(at + len(stop), at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if ends:
            _, decided, self.stop = min(ends)
        else:
            decided = len(text) if last else len(text) - self._undecided(text)
        self._held = "" if self.stopped else text[decided:]
        self._shown.append(text[:decided])
        return text[:decided]

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string without completing it."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        lengths = range(min(longest, len(text)), 0, -1)
        return next((n for n in lengths if any(stop.startswith(text[-n:]) for stop in self._stop)), 0)
