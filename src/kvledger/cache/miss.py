"""Why the rest of a prompt was not reused."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import Enum

from kvledger.cache.digest import TOKEN_BYTES, token_at
from kvledger.cache.events import RemovalReason
from kvledger.cache.lookup import Match
from kvledger.cache.namespace import Namespace
from kvledger.cache.trie import Trie, common_tokens
from kvledger.text.prompt import Segment

MIN_TOKENS = 2
"""The shortest prompt of which anything can be reused, because its last token is always computed."""


class MissReason(Enum):
    """What stood at the first token that was not reused."""

    COLD_START = "cold_start"
    """Nothing earlier goes on this way: these tokens are new."""
    PREFIX_CHANGED = "prefix_changed"
    """The nearest earlier prompt has another token here."""
    EXPIRED = "expired"
    """It was cached, and its time to live ran out."""
    EVICTED = "evicted"
    """It was cached, and its blocks were needed for others."""
    BELOW_MINIMUM = "below_minimum"
    """The prompt is shorter than the least that can be reused."""
    OTHER_NAMESPACE = "other_namespace"
    """The same tokens are cached for this tenant under another model, tokenizer, adapter or layout."""
    NOT_YET_WRITTEN = "not_yet_written"
    """A running request is still computing it."""
    DISABLED = "disabled"
    """The cache is off, or this request asked not to use it."""


_MISSES = {RemovalReason.EVICTED: MissReason.EVICTED, RemovalReason.EXPIRED: MissReason.EXPIRED}


@dataclass(frozen=True)
class Miss:
    """The first token that was not reused, and why.

    `position` is its index in the prompt and `path` where in the request body it came from (None: unknown). For
    PREFIX_CHANGED, `token` is the prompt's token there and `earlier_token` that of the nearest earlier prompt. For
    BELOW_MINIMUM, `minimum` is the number of tokens in force. For OTHER_NAMESPACE, `differs` names the fields.

    Another tenant's entries never show: to everybody else they look like prompts that never were.
    """

    reason: MissReason
    position: int = 0
    path: str | None = None
    token: int | None = None
    earlier_token: int | None = None
    minimum: int | None = None
    differs: tuple[str, ...] = ()


class Graves:
    """Which blocks used to be where, below nodes that are still there: of the last `capacity` removals or more."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._recent: dict[int, dict[bytes, tuple[bytes, MissReason]]] = {}
        self._older: dict[int, dict[bytes, tuple[bytes, MissReason]]] = {}

    def dig(self, parent: int, tokens: bytes, reason: RemovalReason) -> None:
        """The block with `tokens` below `parent` is gone."""
        if self._size == self._capacity:
            self._older, self._recent, self._size = self._recent, {}, 0
        graves = self._recent.get(parent)
        if graves is None:
            graves = self._recent[parent] = {}
        # Twice: a prompt may end within the block, and is then recognised by the first token of its rest.
        graves[tokens] = graves[tokens[:TOKEN_BYTES]] = tokens, _MISSES[reason]
        self._size += 1

    def level(self, nodes: Sequence[int]) -> None:
        """The nodes themselves are gone, and what used to be below them is beyond recall."""
        for generation in (self._recent, self._older):
            if not generation.keys().isdisjoint(nodes):
                for node in nodes:
                    generation.pop(node, None)

    def find(self, node: int, tokens: bytes, num_known: int) -> MissReason | None:
        """Why more than the first `num_known` tokens of `tokens` are no longer there, if they ever were."""
        for generation in (self._recent, self._older):
            graves = generation.get(node)
            if graves is None:
                continue
            for name in (tokens, tokens[:TOKEN_BYTES]):
                if name in graves:
                    buried, reason = graves[name]
                    if common_tokens(buried, tokens) > num_known:
                        return reason
        return None


def segment_path(segments: Sequence[Segment], position: int) -> str | None:
    """The path of the segment that holds token `position`; segments are in order and do not overlap."""
    index = bisect_right(segments, position, key=lambda segment: segment.start) - 1
    return segments[index].path if index >= 0 and position < segments[index].end else None


def explain(
    trie: Trie,
    graves: Graves,
    namespace: Namespace,
    match: Match,
    data: bytes,
    reused: int,
    segments: Sequence[Segment],
    being_written: int,
) -> Miss | None:
    """Why the prompt with token bytes `data` was reused up to token `reused` only; None if only the last is left.

    `match` is what the trie held of it; `being_written` is how many tokens after the match's path a running lease is
    about to write.
    """
    num_tokens = len(data) // TOKEN_BYTES
    path = segment_path(segments, reused)
    if num_tokens < MIN_TOKENS:
        return Miss(MissReason.BELOW_MINIMUM, reused, path, minimum=MIN_TOKENS)
    if reused == num_tokens - 1:
        return None
    start = len(match.path) * trie.block_size
    tokens = data[start * TOKEN_BYTES : (start + trie.block_size) * TOKEN_BYTES]
    known = reused - start
    if being_written > known:
        return Miss(MissReason.NOT_YET_WRITTEN, reused, path)
    gone = graves.find(match.node, tokens, known)
    if match.expired:
        gone = MissReason.EXPIRED
    elif match.num_common > known:  # found, but there was no room to copy it to
        gone = MissReason.EVICTED
    if gone is not None:
        return Miss(gone, reused, path)
    if reused and match.earlier_token is not None:
        return Miss(MissReason.PREFIX_CHANGED, reused, path, token_at(data, reused), match.earlier_token)
    differs = _differing_fields(trie, namespace, tokens) if not reused else ()
    reason = MissReason.OTHER_NAMESPACE if differs else MissReason.COLD_START
    return Miss(reason, reused, path, differs=differs)


def _differing_fields(trie: Trie, namespace: Namespace, tokens: bytes) -> tuple[str, ...]:
    """The fields in which the nearest of the tenant's other namespaces that hold `tokens` differs, if there is one."""
    found = [
        tuple(field.name for field in fields(Namespace) if getattr(other, field.name) != getattr(namespace, field.name))
        for other, root in trie.roots[namespace.tenant].items()
        if other != namespace and trie.covers(root, tokens)
    ]
    return min(found, key=len, default=())
