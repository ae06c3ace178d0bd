"""Which earlier request each request should have continued: by the log's conversation, by prefix, by shared text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvledger.audit.request import Request
from kvledger.providers.prompt import Level

_VOTERS = 64
"""Parts looked up for an earlier request with the same text behind a difference."""


@dataclass(frozen=True, slots=True)
class Kin:
    """`earlier` is the index of the nearest earlier request, -1 for none, `shared` the parts at the start that both
    have, and `continues` whether the later goes on where the earlier one's last message ended or was replaced.
    `elsewhere` is a request with the same tools and system text under another key, -1 for none."""

    earlier: int = -1
    shared: int = 0
    continues: bool = False
    elsewhere: int = -1


def trace(requests: Sequence[Request]) -> list[Kin]:
    """The kin of each request, in their order; fills in the conversations of requests that have none."""
    tracer = _Tracer(requests)
    return [tracer.kin(request) for request in requests]


class _Tracer:
    """A trie of part numbers for each provider and key; each node knows the latest request that passed it."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests = requests
        self._children: dict[tuple[int, int], int] = {}
        self._latest: list[int] = []
        self._roots: dict[tuple[str, str], int] = {}
        self._in_conversation: dict[tuple[str, str, str], int] = {}
        self._with_part: dict[tuple[str, str, int], int] = {}
        self._with_head: dict[tuple[str, tuple[int, ...]], int] = {}
        self._head_of_key: dict[tuple[str, str, tuple[int, ...]], int] = {}

    def kin(self, request: Request) -> Kin:
        if request.prompt is None:
            if not request.conversation:
                return Kin()
            place = (request.provider, request.key, request.conversation)
            earlier = self._in_conversation.get(place, -1)
            self._in_conversation[place] = request.index
            return Kin(earlier)
        path = self._walk(request)
        kin = self._nearest(request, path)
        if not request.conversation:
            new = f"#{request.index + 1}"
            request.conversation = self._requests[kin.earlier].conversation if kin.continues else new
        self._remember(request, path)
        return kin

    def _walk(self, request: Request) -> list[int]:
        """The nodes of the request's prefixes, made where they are new (and then without a latest request)."""
        place = (request.provider, request.key)
        node = self._roots.get(place, -1)
        if node < 0:
            node = self._roots[place] = self._new()
        path, children = [node], self._children
        for number in request.ids:
            step = (node, number)
            found = children.get(step)
            if found is None:
                found = children[step] = self._new()
            node = found
            path.append(node)
        return path

    def _new(self) -> int:
        self._latest.append(-1)
        return len(self._latest) - 1

    def _nearest(self, request: Request, path: list[int]) -> Kin:
        depth = next((i for i in range(len(path) - 1, -1, -1) if self._latest[path[i]] >= 0), -1)
        if depth < 0:
            return Kin(elsewhere=self._elsewhere(request))
        earlier = self._latest[path[depth]]
        if self._continues(earlier, depth, request):
            return Kin(earlier, depth, True)
        place = (request.provider, request.key, request.conversation)
        others = {self._in_conversation.get(place, -1), self._by_votes(request, depth)} - {-1, earlier}
        best = max((earlier, *sorted(others)), key=lambda index: self._likeness(index, request))
        shared = _shared(self._requests[best].ids, request.ids)
        elsewhere = self._elsewhere(request) if not shared else -1
        return Kin(best, shared, self._continues(best, shared, request), elsewhere)

    def _continues(self, index: int, shared: int, request: Request) -> bool:
        """Whether all of the earlier prompt but its last message stands at the start of the later one, and something of
        the conversation is in both."""
        earlier = self._requests[index]
        assert earlier.prompt is not None
        parts = earlier.prompt.parts
        if shared == len(parts):
            return shared > 0
        first = next((i for i, part in enumerate(parts) if part.level is Level.MESSAGES), len(parts))
        return shared > first and shared >= last_message(earlier) and len(request.ids) > shared

    def _likeness(self, index: int, request: Request) -> int:
        """Tokens of the later prompt that the earlier one has anywhere; of equals the same conversation leads."""
        earlier = self._requests[index]
        assert request.prompt is not None
        have = Counter(earlier.ids)
        tokens = sum(
            part.tokens for part, number in zip(request.prompt.parts, request.ids, strict=True) if have[number]
        )
        return tokens + (earlier.conversation == request.conversation != "") * 16

    def _by_votes(self, request: Request, depth: int) -> int:
        votes: Counter[int] = Counter()
        assert request.prompt is not None
        for part, number in list(zip(request.prompt.parts, request.ids, strict=True))[depth : depth + _VOTERS]:
            found = self._with_part.get((request.provider, request.key, number), -1)
            if found >= 0:
                votes[found] += part.tokens
        return max(votes, key=lambda index: (votes[index], index)) if votes else -1

    def _elsewhere(self, request: Request) -> int:
        head = _head(request)
        if not head or (request.provider, request.key, head) in self._head_of_key:
            return -1
        return self._with_head.get((request.provider, head), -1)

    def _remember(self, request: Request, path: list[int]) -> None:
        index = request.index
        for node in path:
            self._latest[node] = index
        for number in request.ids[-_VOTERS:]:
            self._with_part[request.provider, request.key, number] = index
        self._in_conversation[request.provider, request.key, request.conversation] = index
        head = _head(request)
        self._with_head[request.provider, head] = index
        self._head_of_key[request.provider, request.key, head] = index


def last_message(request: Request) -> int:
    """The index of the first part of the prompt's last message: where the role changes for the last time."""
    assert request.prompt is not None
    parts = request.prompt.parts
    start = len(parts) - 1
    while start > 0 and parts[start - 1].level is Level.MESSAGES and parts[start - 1].role == parts[start].role:
        start -= 1
    return max(start, 0)


def _shared(earlier: tuple[int, ...], later: tuple[int, ...]) -> int:
    return next(
        (i for i, (old, new) in enumerate(zip(earlier, later, strict=False)) if old != new),
        min(len(earlier), len(later)),
    )


def _head(request: Request) -> tuple[int, ...]:
    """The numbers of the tools and the system text."""
    assert request.prompt is not None
    parts = request.prompt.parts
    first = next((i for i, part in enumerate(parts) if part.level is Level.MESSAGES), len(parts))
    return request.ids[:first]
