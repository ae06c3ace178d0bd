"""The tokens that were really sampled for an answer, kept so that the next turn need not guess them from the text.

The text of an answer does not determine its tokens: a model may well sample "he" + "llo". Tokenised anew, the answer
differs from what the KV cache holds, and everything after it is lost to reuse.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

_ENTRY_COST = 32  # what an entry takes besides its tokens, in tokens


class Answers:
    """A bounded memory of answers, least recently used first to go. Safe to use from several threads.

    An answer is found by who asked (`tenant`), by all tokens before it and by its text, so that it can only ever be
    recalled where it was given. `max_tokens` bounds the tokens kept, each entry counting some 32 more.
    """

    def __init__(self, max_tokens: int = 1_000_000) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, tenant: str, prompt_tokens: Sequence[int], text: str, output_tokens: Sequence[int]) -> None:
        """Keep the ids sampled after `prompt_tokens`, whose text was shown as `text`."""
        key = _key(tenant, prompt_tokens, text)
        tokens = array("I", output_tokens)
        with self._lock:
            self._forget(key)
            self._entries[key] = tokens
            self._num_tokens += len(tokens) + _ENTRY_COST
            while self._num_tokens > self._max_tokens:
                self._forget(next(iter(self._entries)))

    def recall(self, tenant: str, prefix_tokens: Sequence[int], text: str) -> tuple[int, ...] | None:
        """Return the ids remembered for `text` after exactly these tokens, or None."""
        key = _key(tenant, prefix_tokens, text)
        with self._lock:
            tokens = self._entries.get(key)
            if tokens is None:
                return None
            self._entries.move_to_end(key)
            return tuple(tokens)

    def _forget(self, key: bytes) -> None:
        tokens = self._entries.pop(key, None)
        if tokens is not None:
            self._num_tokens -= len(tokens) + _ENTRY_COST


def _key(tenant: str, tokens: Sequence[int], text: str) -> bytes:
    before = memoryview(tokens if isinstance(tokens, array) else array("I", tokens)).cast("B")
    digest = hashlib.sha256()
    for part in (tenant.encode(), before, text.encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()
