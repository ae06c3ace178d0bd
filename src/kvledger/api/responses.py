"""The responses that `GET /v1/responses/{id}` can show again."""

from __future__ import annotations

from collections import OrderedDict


class Responses:
    """Encoded responses by tenant and id, at most `capacity` bytes, the oldest forgotten first. For one thread."""

    def __init__(self, capacity: int = 32 << 20) -> None:
        self._capacity = capacity
        self._held = 0
        self._bodies: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def put(self, tenant: str, id: str, body: bytes) -> None:
        self._bodies[tenant, id] = body
        self._held += len(body)
        while self._held > self._capacity:
            self._held -= len(self._bodies.popitem(last=False)[1])

    def get(self, tenant: str, id: str) -> bytes | None:
        return self._bodies.get((tenant, id))

    def delete(self, tenant: str, id: str) -> bool:
        """Whether it was there."""
        body = self._bodies.pop((tenant, id), None)
        self._held -= len(body or b"")
        return body is not None
