"""The responses a server remembers, for `previous_response_id` and for comparing prompts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`body` is the request with all that came before it put in front of its `input` (always an array of items),
    `output` the items of the answer."""

    body: Mapping[str, Any]
    output: tuple[Mapping[str, Any], ...]

    @property
    def items(self) -> list[Any]:
        """What a next request goes on from. Instructions are not carried over."""
        return [*self.body["input"], *self.output]


_BASE_BYTES, _ITEM_BYTES = 1024, 8
"""What an entry takes besides its own JSON, and what a reference to an item takes that it shares with others."""


class Conversations:
    """Stored responses of all tenants, at most `max_bytes` (an estimate), the least recently used forgotten first.
    Safe to use from several threads."""

    def __init__(self, max_bytes: int = 64 * 2**20) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._stored: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, tenant: str) -> Conversation:
        """What one tenant sees of them."""
        return Conversation(self, tenant)

    def get(self, tenant: str, id: str) -> StoredResponse | None:
        with self._lock:
            found = self._stored.get((tenant, id))
            if found is None:
                return None
            self._stored.move_to_end((tenant, id))
            return found[0]

    def put(self, tenant: str, id: str, response: StoredResponse) -> None:
        """Remember a response; one that is too large for the whole store is not."""
        before = self.get(tenant, response.body.get("previous_response_id") or "")
        new = response.body["input"][len(before.items) if before else 0 :]
        own = msgspec.json.encode(({**response.body, "input": new}, response.output))
        size = _BASE_BYTES + len(own) + _ITEM_BYTES * len(response.body["input"])
        if size > self._max_bytes:
            return
        with self._lock:
            self._stored[tenant, id] = response, size
            self._bytes += size
            while self._bytes > self._max_bytes:
                _, (_, freed) = self._stored.popitem(last=False)
                self._bytes -= freed

    def delete(self, tenant: str, id: str) -> None:
        """Forget a response, if it is there."""
        with self._lock:
            found = self._stored.pop((tenant, id), None)
            if found is not None:
                self._bytes -= found[1]


@dataclass(frozen=True, slots=True)
class Conversation:
    """The stored responses of one tenant."""

    conversations: Conversations
    tenant: str

    def get(self, id: str) -> StoredResponse | None:
        return self.conversations.get(self.tenant, id)

    def put(self, id: str, response: StoredResponse) -> None:
        self.conversations.put(self.tenant, id, response)
