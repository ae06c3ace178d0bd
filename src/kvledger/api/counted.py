"""The tokens of a prompt's parts, taken from the prompt as the model's template rendered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from kvledger.providers.prompt import Part, ProviderPrompt
from kvledger.providers.rulebook import TokenCounter
from kvledger.text.prompt import Prompt
from kvledger.text.traced import TEMPLATE

ESTIMATE = 4
"""Characters per token where a first guess will do."""


class Estimate:
    """Counts a token per `ESTIMATE` characters."""

    def count(self, text: str) -> int:
        return -(-len(text) // ESTIMATE)


def counted(asked: ProviderPrompt, prompt: Prompt, counter: TokenCounter) -> ProviderPrompt:
    """`asked` with the tokens that each part has in `prompt`, so that they sum to the prompt's.

    What the template writes counts to the part before it, at the very beginning to the first: a prompt ends with the
    words that open an answer, and in the next turn these stand in the same place, so that no part changes its size
    when the chat goes on. Parts that the template joined into one text are told apart by `counter`, all but the last.
    """
    if not prompt.segments or not asked.parts:
        return asked.scaled(len(prompt.tokens))
    owners = _Owners(asked.parts)
    tokens: Counter[tuple[int, ...]] = Counter()
    owner: tuple[int, ...] = ()
    unowned = 0
    for segment in prompt.segments:
        if segment.path != TEMPLATE:
            owner = owners.of(segment.path) or owner
        if owner:
            tokens[owner] += segment.end - segment.start
        else:
            unowned += segment.end - segment.start
    tokens[owners.first] += unowned
    sizes = [0] * len(asked.parts)
    for indices, total in tokens.items():
        for index, size in zip(indices, _shares([asked.parts[i] for i in indices], total, counter), strict=True):
            sizes[index] += size
    parts = tuple(replace(part, tokens=size) for part, size in zip(asked.parts, sizes, strict=True))
    return replace(asked, parts=parts)


class _Owners:
    """Which parts a path of the rendered prompt belongs to."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._exact: dict[str, int] = {}
        self._below: dict[str, list[int]] = {}
        for index, part in enumerate(parts):
            if not part.content:
                continue
            self._exact.setdefault(part.path, index)
            for path in _upwards(part.path):
                self._below.setdefault(path, []).append(index)
        self.first = (0,)

    def of(self, path: str) -> tuple[int, ...]:
        """The part at `path` or at its nearest ancestor; else all parts below that ancestor."""
        for ancestor in _upwards(path):
            if (index := self._exact.get(ancestor)) is not None and len(self._below[ancestor]) == 1:
                return (index,)
            if found := self._below.get(ancestor):
                return tuple(found)
        return ()


def _upwards(path: str) -> list[str]:
    """`path` and each path above it: `a[0].b`, `a[0]`, `a`."""
    found = [path]
    for at in range(len(path) - 1, 0, -1):
        if path[at] in ".[":
            found.append(path[:at])
    return found


def _shares(parts: Sequence[Part], total: int, counter: TokenCounter) -> list[int]:
    """`total` over `parts`: to each what it counts alone, to the last the rest."""
    shares, rest = [], total
    for part in parts[:-1]:
        shares.append(min(rest, counter.count(part.content)))
        rest -= shares[-1]
    return [*shares, rest]
