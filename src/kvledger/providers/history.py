"""The prompts a server or an audit has seen lately, to find the one that a new prompt should have continued."""

from __future__ import annotations

from collections import OrderedDict

from kvledger.cache.digest import Digest, fields_digest
from kvledger.providers.prompt import ProviderPrompt, prefix_digests


class History:
    """The last `capacity` prompts. The nearest to a new one is that which shares the most parts from the first on;
    among equals the latest, and where none shares even one, the latest of the same provider and scope."""

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"a history of {capacity} prompts remembers nothing: give one or more")
        self._capacity = capacity
        self._next = 0
        self._prompts: OrderedDict[int, tuple[ProviderPrompt, list[Digest]]] = OrderedDict()
        self._latest: dict[Digest, int] = {}  # prefix digest -> the latest prompt that begins with it

    def nearest(self, prompt: ProviderPrompt) -> ProviderPrompt | None:
        for digest in reversed(self._digests(prompt)):
            if (number := self._latest.get(digest)) is not None:
                return self._prompts[number][0]
        return None

    def add(self, prompt: ProviderPrompt) -> None:
        digests = self._digests(prompt)
        self._prompts[self._next] = (prompt, digests)
        for digest in digests:
            self._latest[digest] = self._next
        self._next += 1
        if len(self._prompts) > self._capacity:
            forgotten, (_, old) = self._prompts.popitem(last=False)
            for digest in old:
                if self._latest.get(digest) == forgotten:
                    del self._latest[digest]

    @staticmethod
    def _digests(prompt: ProviderPrompt) -> list[Digest]:
        """The root, which stands for "the same provider and scope", and each longer prefix."""
        root = fields_digest("history", provider=prompt.provider, scope=prompt.scope)
        return [root, *prefix_digests(root, prompt.parts)]
