"""What the charts need of each request: spend over time with and without the cache, and hit rate by gap."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise

from kvledger.audit.costs import Costs, money
from kvledger.audit.record import Record, Unread
from kvledger.ledger.account import Split, Usage
from kvledger.providers.catalogue import provider_named

GAPS = ((60.0, "< 1 min"), (300.0, "1-5 min"), (1800.0, "5-30 min"), (3600.0, "30-60 min"), (86_400.0, "1-24 h"))
"""Upper ends of the gaps between two requests of a conversation, in seconds; above them is `LONGEST`."""

LONGEST = "> 24 h"


@dataclass(frozen=True, slots=True)
class Spent:
    """Money up to and including a moment (seconds since the epoch), as billed and had nothing been cached."""

    at: float
    observed: Decimal
    uncached: Decimal


@dataclass(frozen=True, slots=True)
class _Request:
    at: float
    provider: str
    model: str
    conversation: str
    usage: Usage


class Timeline:
    """Watches the records of an audit as they pass; keeps those with a time and usage."""

    def __init__(self) -> None:
        self._requests: list[_Request] = []
        self._places: dict[tuple[str, str], int] = {}

    def watch(self, records: Iterable[Record | Unread]) -> Iterator[Record | Unread]:
        """The same records."""
        for record in records:
            if isinstance(record, Record) and record.at is not None and record.usage is not None:
                self._keep(record, record.at, record.usage)
            yield record

    def spending(self, costs: Costs, points: int = 200) -> list[Spent]:
        """Cumulative money at `points` equal steps of time; requests of unknown price are in neither sum."""
        requests = sorted(self._requests, key=lambda request: request.at)
        if not requests:
            return []
        first, last = requests[0].at, requests[-1].at
        step = max(last - first, 1.0) / points
        spent, observed, uncached = [Spent(first, Decimal(0), Decimal(0))], 0, 0
        for request in requests:
            provider = provider_named(request.provider).name
            tokens = request.usage.split.prompt_tokens
            plain = replace(request.usage, split=Split(tokens, fresh=tokens), storage_token_seconds=0)
            billed = costs.cost_of(provider, request.model, request.usage, request.at)
            full = costs.cost_of(provider, request.model, plain, request.at)
            if isinstance(billed, str) or isinstance(full, str):
                continue
            observed, uncached = observed + billed, uncached + full
            now = Spent(request.at, money(observed), money(uncached))
            if request.at - spent[-1].at >= step or len(spent) == 1:
                spent.append(now)
            else:
                spent[-1] = replace(now, at=spent[-1].at)
        return spent

    def by_gap(self) -> list[tuple[str, int, float | None]]:
        """For each stretch of gaps its name, the requests that came that long after the one before in their
        conversation, and tokens read / tokens of prompt of these."""
        conversations: dict[tuple[str, str], list[_Request]] = defaultdict(list)
        for request in self._requests:
            if request.conversation:
                conversations[request.provider, request.conversation].append(request)
        ends = [end for end, _ in GAPS]
        sums = [[0, 0, 0] for _ in range(len(GAPS) + 1)]
        for requests in conversations.values():
            requests.sort(key=lambda request: request.at)
            for before, after in pairwise(requests):
                row = sums[bisect_left(ends, after.at - before.at)]
                row[0] += 1
                row[1] += after.usage.split.read
                row[2] += after.usage.split.prompt_tokens
        names = [*(name for _, name in GAPS), LONGEST]
        return [
            (name, n, read / tokens if tokens else None) for name, (n, read, tokens) in zip(names, sums, strict=True)
        ]

    def _keep(self, record: Record, at: float, usage: Usage) -> None:
        kept = _Request(at, record.provider, record.model, record.conversation or "", usage)
        place = self._places.get((record.provider, record.id)) if record.id else None
        if place is not None:
            self._requests[place] = kept
            return
        if record.id:
            self._places[record.provider, record.id] = len(self._requests)
        self._requests.append(kept)
