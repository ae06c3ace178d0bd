"""Findings that no single request shows: writes that nobody reads, caching that costs more than it saves, bulk work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvledger.audit.causes import Loss
from kvledger.audit.compare import LEAST
from kvledger.audit.findings import Code
from kvledger.audit.lineage import Kin
from kvledger.audit.request import Request
from kvledger.ledger.account import Split

LIFETIMES = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43_200.0}
"""Seconds of the lifetimes that are sold for a write fee."""

_FEWEST = 3
_WORTH = 10
_BULK = 50
_APART = 10.0
"""Seconds between two requests of a job that runs by itself."""


@dataclass(slots=True)
class Standing:
    """One request as it turned out: the split that was reported, else that of the rules, and what it cost in units with
    the cache and without, None where unpriced."""

    request: Request
    split: Split
    cost: int | None
    uncached: int | None


def wholes(standings: Sequence[Standing], kins: Sequence[Kin], losses: Sequence[Loss]) -> list[Loss]:
    """Losses of whole groups of requests (one provider, model and key) in which no request has a cause of its own."""
    groups: dict[tuple[str, str, str], list[Standing]] = defaultdict(list)
    for standing in standings:
        request = standing.request
        groups[request.provider, request.model, request.key].append(standing)
    troubled = {(each.request.provider, each.request.model, each.request.key) for each in losses}
    found: list[Loss] = []
    by_index = {standing.request.index: standing for standing in standings}
    for name, group in groups.items():
        if name not in troubled:
            found += _unread(group, kins, by_index) or _dear(group)
        found += _bulk(group, kins)
    return found


def _unread(group: Sequence[Standing], kins: Sequence[Kin], by_index: Mapping[int, Standing]) -> list[Loss]:
    """Writes that expired within the log without having been read, where most of a group's are such."""
    used, last = set[int](), group[-1].request.at
    for standing in group:
        before = by_index.get(kins[standing.request.index].earlier)
        if before is not None and standing.split.read >= LEAST and standing.split.read > before.split.read // 2:
            used.add(before.request.index)
    writers = [each for each in group if each.split.written_tokens >= LEAST]
    dead = [
        each
        for each in writers
        if each.request.index not in used and each.request.at + _lifetime(each.split) < last and not each.split.read
    ]
    if len(dead) < _FEWEST or 2 * len(dead) < len(writers):
        return []
    return [
        _loss(Code.WRITE_NEVER_READ, each, each.split.written_tokens, "What it wrote expired without being read.")
        for each in dead
    ]


def _dear(group: Sequence[Standing]) -> list[Loss]:
    """A group that paid more with its cache than it would have without."""
    priced = [each for each in group if each.cost is not None and each.uncached is not None]
    if len(priced) < _WORTH or not any(each.split.read for each in priced):
        return []
    more = sum((each.cost or 0) - (each.uncached or 0) for each in priced)
    lasting = priced[0].request.at + _lifetime(priced[0].split) < priced[-1].request.at
    if more <= 0 or not lasting:
        return []
    detail = "The fees for writing are more than what reading saves."
    return [
        _loss(Code.NOT_WORTH_CACHING, each, each.split.written_tokens, detail)
        for each in priced
        if each.split.written_tokens
    ]


def _bulk(group: Sequence[Standing], kins: Sequence[Kin]) -> list[Loss]:
    """Many requests, one close behind another, none of which another continues: nobody waits for a single answer."""
    alone = [each for each in group if each.request.prompt is not None and each.request.usage is not None]
    if len(alone) < _BULK or len(alone) < len(group) or not all(each.request.timed for each in alone):
        return []
    if any(each.request.usage and each.request.usage.service_tier not in ("standard", "", "default") for each in alone):
        return []
    if any(kins[each.request.index].continues for each in alone):
        return []
    gaps = [b.request.at - a.request.at for a, b in pairwise(alone)]
    if sum(gap <= _APART for gap in gaps) < 0.9 * len(gaps):
        return []
    detail = f"{len(alone)} single requests, most within {_APART:.0f} s of one another, none continued."
    return [_loss(Code.BATCH_POSSIBLE, each, each.request.tokens, detail) for each in alone]


def _lifetime(split: Split) -> float:
    return max((LIFETIMES.get(ttl, 300.0) for ttl in split.written), default=300.0)


def _loss(code: Code, standing: Standing, tokens: int, detail: str) -> Loss:
    return Loss(code, standing.request, None, 0, tokens, "", detail=detail, proven=standing.request.prompt is not None)
