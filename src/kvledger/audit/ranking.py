"""Losses of the same cause at the same place become one finding, with its price, its remedy and the proof of that."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from statistics import median

from kvledger.audit.causes import Loss
from kvledger.audit.costs import Costs, money
from kvledger.audit.findings import Change, Code, Finding
from kvledger.audit.lineage import Kin
from kvledger.audit.remedies import Remedy, remedy
from kvledger.audit.replay import in_scopes, replay
from kvledger.audit.request import Request
from kvledger.ledger.account import Split, Usage
from kvledger.ledger.money import quotient, times
from kvledger.providers.prompt import Part

MONTH = 30 * 86_400
"""Seconds."""

_NO_TRADE = frozenset((Code.UNEXPLAINED, Code.TTL_EXPIRED, Code.PARALLEL_FAN_OUT, Code.NOT_WORTH_CACHING))
"""Findings that are said even if no change pays; all others are faults only if the remedy saves money."""


def findings(
    losses: Sequence[Loss],
    requests: Sequence[Request],
    kins: Sequence[Kin],
    costs: Costs,
    rules: Mapping[int, int | None],
    seconds: float,
) -> list[tuple[Finding, Remedy]]:
    """All findings, the dearest first. `rules` is what each request costs by the rules, in units."""
    groups: dict[tuple[Code, str, str], list[Loss]] = defaultdict(list)
    for each in losses:
        groups[each.code, each.request.provider, _place(each)].append(each)
    found = []
    for group in groups.values():
        made = _finding(group, requests, kins, costs, rules, seconds)
        if made is not None:
            found.append(made)
    return sorted(found, key=lambda pair: (pair[0].saves or pair[0].cost or Decimal(0), pair[0].tokens), reverse=True)


def _place(loss: Loss) -> str:
    """Findings in the history are one, whatever the message; elsewhere each place is its own."""
    if loss.code in (Code.VOLATILE_PREFIX, Code.PARAMS_CHANGED, Code.KEY_ORDER_CHANGED):
        return re.sub(r"^(messages|contents|input)\[[1-9]\d*\]", r"\1[*]", loss.path)
    return ""


def _finding(
    group: Sequence[Loss],
    requests: Sequence[Request],
    kins: Sequence[Kin],
    costs: Costs,
    rules: Mapping[int, int | None],
    seconds: float,
) -> tuple[Finding, Remedy] | None:
    first = group[0]
    if first.code is Code.BATCH_POSSIBLE:
        return _batch(group, costs, seconds)
    cure = remedy(group, requests, kins)
    saves = _saves(group, cure, requests, costs, rules)
    if saves is not None and saves <= 0:
        if first.code not in _NO_TRADE:
            return None
        if first.code is Code.TTL_EXPIRED:
            cure = Remedy(Change("The longer lifetime does not pay here."))
        saves = Decimal(0)
    amounts = [_lost(each, costs) for each in group]
    cost = None if any(isinstance(each, str) for each in amounts) else money(sum(int(each) for each in amounts))
    detail = first.detail
    if first.code is Code.TTL_EXPIRED:
        detail = f"{detail} {_gaps(group, costs)}".strip()
    tokens = sum(each.tokens for each in group)
    proven = any(each.proven for each in group)
    example = next((each for each in group if each.where), first)
    made = Finding(
        first.code,
        len(group),
        tokens,
        cost,
        saves,
        _monthly(cost, seconds),
        example.where,
        cure.change,
        first.request.source,
        proven,
        detail,
    )
    return made, cure


def _lost(each: Loss, costs: Costs) -> int | str:
    if each.code in (Code.WRITE_NEVER_READ, Code.NOT_WORTH_CACHING):
        usage = each.request.usage
        written = usage.split.written if usage and usage.split.written else {"default": each.tokens}
        tokens = sum(written.values())
        dear = costs.cost(each.request, Usage(Split(tokens, written=written)))
        cheap = costs.cost(each.request, Usage(Split(tokens, fresh=tokens)))
        return dear if isinstance(dear, str) else cheap if isinstance(cheap, str) else max(0, dear - cheap)
    return costs.lost(each.request, each.tokens)


def _saves(
    group: Sequence[Loss], cure: Remedy, requests: Sequence[Request], costs: Costs, rules: Mapping[int, int | None]
) -> Decimal | None:
    if cure.edit is None or not all(each.proven for each in group):
        return None
    some = [each.request for each in group]
    if group[0].code is Code.ISOLATED:
        some += [each.earlier for each in group if each.earlier is not None]
    touched = [request for request in in_scopes(requests, some) if request.index in rules]
    before = [rules[request.index] for request in touched]
    after = replay(touched, costs, cure.edit, began_at_once=cure.began_at_once).cost
    if after is None or any(each is None for each in before):
        return None
    return money(sum(each or 0 for each in before) - after)


def _batch(group: Sequence[Loss], costs: Costs, seconds: float) -> tuple[Finding, Remedy] | None:
    now, then = 0, 0
    for each in group:
        usage = each.request.usage
        assert usage is not None
        plain, batched = costs.cost(each.request, usage), costs.cost(each.request, replace(usage, service_tier="batch"))
        if isinstance(plain, str) or isinstance(batched, str):
            return None  # no batch of this model is sold at a known price
        now, then = now + plain, then + batched
    if then >= now:
        return None
    text = "Send these through the provider's batch interface, if their answers can wait up to a day."
    cure = Remedy(Change(text))
    saved = money(now - then)
    tokens = sum(each.tokens for each in group)
    first = group[0]
    made = Finding(
        first.code, len(group), tokens, saved, saved, _monthly(saved, seconds), None, cure.change,
        first.request.source, True, first.detail,
    )  # fmt: skip
    return made, cure


def _gaps(group: Sequence[Loss], costs: Costs) -> str:
    """The gap distribution, and what keeping the entries alive would cost beside what was lost."""
    gaps = sorted(each.request.at - each.earlier.at for each in group if each.earlier is not None)
    if not gaps:
        return ""
    most = gaps[int(0.9 * (len(gaps) - 1))]
    told = f"Gaps: median {median(gaps):.0f} s, 90 % within {most:.0f} s, longest {gaps[-1]:.0f} s."
    lost, kept = 0, 0
    for each in group:
        if each.earlier is None:
            continue
        amount = costs.lost(each.request, each.tokens)
        read = costs.cost(each.request, Usage(Split(each.tokens, each.tokens)))
        if isinstance(amount, str) or isinstance(read, str):
            return told
        lifetime = 3600.0 if any(p.breakpoint and p.breakpoint.ttl == "1h" for p in _parts(each.request)) else 300.0
        lost += amount
        kept += read * int((each.request.at - each.earlier.at) // (0.9 * lifetime))
    verdict = "pays" if kept < lost else "does not pay"
    return f"{told} Keeping the entries alive costs {money(kept):f} USD and {verdict}: {money(lost):f} USD were lost."


def _parts(request: Request) -> tuple[Part, ...]:
    return request.prompt.parts if request.prompt else ()


def _monthly(cost: Decimal | None, seconds: float) -> Decimal | None:
    if cost is None or seconds < 1:
        return None
    return quotient(times(MONTH, cost), int(seconds))
