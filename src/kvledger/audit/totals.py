"""Sums over requests, as reported and as the rules give them, for the whole log and by group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from kvledger.audit.costs import money
from kvledger.audit.findings import Totals
from kvledger.audit.request import Request
from kvledger.ledger.account import Usage

Pair = tuple["Tally", "Tally"]


class Tally:
    """A sum in the making; money in units."""

    __slots__ = ("cost", "fresh", "output", "prompt_tokens", "read", "requests", "unpriced", "written")

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.read = self.fresh = self.output = self.cost = 0
        self.written: dict[str, int] = {}
        self.unpriced: Counter[str] = Counter()

    def add(self, usage: Usage, cost: int | str) -> None:
        """`cost` in units, or why it is unknown."""
        split = usage.split
        self.requests += 1
        self.prompt_tokens += split.prompt_tokens
        self.read += split.read
        self.fresh += split.fresh
        self.output += usage.output
        for ttl, tokens in split.written.items():
            self.written[ttl] = self.written.get(ttl, 0) + tokens
        if isinstance(cost, str):
            self.unpriced[cost] += 1
        else:
            self.cost += cost

    def totals(self) -> Totals:
        return Totals(
            self.prompt_tokens,
            self.read,
            {ttl: tokens for ttl, tokens in sorted(self.written.items()) if tokens},
            self.fresh,
            self.output,
            money(self.cost),
            self.requests,
            dict(self.unpriced),
        )


class Groups:
    """Pairs of tallies (observed, rules): one for all requests, and one for each model, key, conversation and hour."""

    def __init__(self) -> None:
        self.all: Pair = (Tally(), Tally())
        self._by: dict[str, dict[str, Pair]] = {"model": {}, "key": {}, "conversation": {}, "hour": {}}
        self._hours: dict[int, str] = {}

    def add(self, request: Request, side: int, usage: Usage, cost: int | str) -> None:
        """Count a request in; `side` 0 is what was observed, 1 what the rules give."""
        self.all[side].add(usage, cost)
        for group, name in self._names(request):
            pair = self._by[group].get(name)
            if pair is None:
                pair = self._by[group][name] = (Tally(), Tally())
            pair[side].add(usage, cost)

    def totals(self) -> Mapping[str, Mapping[str, tuple[Totals, Totals]]]:
        return {
            group: {name: (pair[0].totals(), pair[1].totals()) for name, pair in sorted(found.items())}
            for group, found in self._by.items()
        }

    def _names(self, request: Request) -> list[tuple[str, str]]:
        names = [("model", f"{request.provider}:{request.model}"), ("key", request.key)]
        if request.conversation:
            names.append(("conversation", request.conversation))
        if request.timed:
            hour = int(request.at // 3600)
            if hour not in self._hours:
                self._hours[hour] = f"{datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H:00Z}"
            names.append(("hour", self._hours[hour]))
        return names
