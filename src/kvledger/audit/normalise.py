"""Records of a log become requests: bodies in the rulebook's parts, each text kept once, in the order of time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvledger.audit.record import Record, Unread
from kvledger.audit.request import Request
from kvledger.errors import InvalidRequestError
from kvledger.providers.catalogue import provider_named, rulebook
from kvledger.providers.prompt import Part, ProviderPrompt

BYTES_PER_TOKEN = 4
"""The estimate where a log has no counts."""

ERROR_BAND = 0.25
"""How far that estimate may be off, either way: English prose has 4 to 5 bytes a token, code and other scripts 3."""

_CHAIN = 10_000
"""Responses remembered for those that name one as `previous_response_id`."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Counts four bytes as a token."""

    def count(self, text: str) -> int:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        return math.ceil(size / BYTES_PER_TOKEN)


class Normaliser:
    """Turns records into requests one by one. What it holds grows with the distinct parts of all prompts."""

    def __init__(self, assumed_at: float) -> None:
        """`assumed_at` stands for the time of the first records as long as the log names none."""
        self._at = assumed_at
        self._parts: dict[tuple[str, str, str, str, str], tuple[Part, int]] = {}
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._contents: dict[str, str] = {}
        self._settings: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._counter = Bytes()
        self._chains: OrderedDict[str, list[Any]] = OrderedDict()

    def request(self, record: Record) -> Request:
        """Raises `InvalidRequestError` for a provider nobody knows."""
        provider = provider_named(record.provider).name
        timed = record.at is not None and math.isfinite(record.at) and 0 <= record.at < 2**33
        if timed:
            assert record.at is not None
            self._at = record.at
        prompt, ids, missing = self._prompt(record, provider)
        usage = record.usage if record.usage is not None and record.usage.split.prompt_tokens else None
        return Request(
            record.source,
            provider,
            record.api,
            record.model,
            self._at,
            record.began if record.began is not None and record.began >= self._at else None,
            timed,
            record.key or "",
            record.conversation or "",
            prompt,
            ids,
            usage,
            usage.split.prompt_tokens if usage else prompt.tokens if prompt else 0,
            missing,
            automatic=bool(record.body and record.body.get("cache_control")),
        )

    def _prompt(self, record: Record, provider: str) -> tuple[ProviderPrompt | None, tuple[int, ...], str]:
        if record.body is None:
            return None, (), "the log has no request body"
        body = record.body if record.body.get("model") else {**record.body, "model": record.model}
        try:
            if record.api == "responses":
                body = self._chained(record, body)
            read = rulebook(provider).prompt(body, scope=record.key or "", counter=self._counter, api=record.api)
        except InvalidRequestError as error:
            return None, (), str(error)
        parts, ids = [], []
        for part in read.parts:
            kept, number = self._interned(part)
            parts.append(kept)
            ids.append(number)
        items = tuple(read.settings.items())
        settings = self._settings.setdefault(items, read.settings)
        return ProviderPrompt(read.provider, read.model, read.scope, tuple(parts), settings), tuple(ids), ""

    def _interned(self, part: Part) -> tuple[Part, int]:
        mark = part.breakpoint.ttl if part.breakpoint else ""
        key = (part.path, part.kind, part.role, part.content, mark)
        known = self._parts.get(key)
        if known is None:
            number = self._numbers.setdefault((part.kind, part.role, part.content), len(self._numbers))
            content = self._contents.setdefault(part.content, part.content)
            kept = Part(part.path, part.level, part.kind, content, part.tokens, part.role, part.breakpoint)
            known = self._parts[part.path, part.kind, part.role, content, mark] = kept, number
        return known

    def _chained(self, record: Record, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """A Responses body with what its `previous_response_id` stands for in front of its own input."""
        own = body.get("input")
        items = [{"role": "user", "content": own}] if isinstance(own, str) else list(own or ())
        if previous := body.get("previous_response_id"):
            before = self._chains.get(str(previous))
            if before is None:
                raise InvalidRequestError("the response that it continues is not in the log")
            items = [*before, *items]
            body = {**body, "input": items}
        if record.id:
            answer = record.output if isinstance(record.output, list) else [record.output] if record.output else []
            self._chains[record.id] = [*items, *answer]
            if len(self._chains) > _CHAIN:
                self._chains.popitem(last=False)
        return body


def read(records: Iterable[Record | Unread], *, assumed_at: float) -> tuple[list[Request], list[Unread]]:
    """All requests of a log in the order of time (those without a time behind the one logged before them), and what
    could not be read. A later record of an id replaces the earlier one."""
    normaliser, requests, unread = Normaliser(assumed_at), list[Request](), list[Unread]()
    places: dict[tuple[str, str], int] = {}
    for record in records:
        if isinstance(record, Unread):
            unread.append(record)
            continue
        try:
            request = normaliser.request(record)
        except InvalidRequestError as error:
            unread.append(Unread(record.source, str(error)))
            continue
        if record.id is not None:
            place = places.setdefault((request.provider, record.id), len(requests))
            if place < len(requests):
                requests[place] = request
                continue
        requests.append(request)
    requests.sort(key=lambda request: request.at)
    for index, request in enumerate(requests):
        request.index = index
    return requests, unread
