"""The audit of a log: what was spent, what the rules give for the same requests, and why the two differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kvledger.audit import normalise
from kvledger.audit.causes import Loss, isolated, loss, loss_of_counters
from kvledger.audit.costs import Costs, money
from kvledger.audit.findings import Audit, Code
from kvledger.audit.lineage import trace
from kvledger.audit.marks import best_placement
from kvledger.audit.normalise import ERROR_BAND
from kvledger.audit.ranking import findings
from kvledger.audit.record import Record, Unread
from kvledger.audit.replay import Judge, replay
from kvledger.audit.request import Request
from kvledger.audit.totals import Groups
from kvledger.audit.whatif import Policies, what_ifs
from kvledger.audit.wholes import Standing, wholes
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Split
from kvledger.ledger.prices import Prices


@dataclass(frozen=True, slots=True)
class Options:
    """`assumed_at` (seconds since the Unix epoch) dates records of a log that names no time. Without `what_if` no other
    policies are tried and no best placement is computed: the quickest audit."""

    assumed_at: float
    what_if: bool = True
    policies: Policies = field(default_factory=Policies)


def audit(records: Iterable[Record | Unread], *, prices: Prices, options: Options) -> Audit:
    """Read all records once and judge them in the order of time.

    What is held grows with the distinct texts of the log and by some hundred bytes a request, not with the log's size.
    """
    requests, unread = normalise.read(records, assumed_at=options.assumed_at)
    kins, costs, groups, judge = trace(requests), Costs(prices), Groups(), Judge()
    losses, standings = list[Loss](), list[Standing]()
    residuals: Counter[str] = Counter()
    rules: dict[int, int | None] = {}
    uncached = prompt_tokens = 0
    for request, kin in zip(requests, kins, strict=True):
        earlier = requests[kin.earlier] if kin.earlier >= 0 else None
        prompt_tokens += request.tokens
        observed = None if request.usage is None else costs.cost(request, request.usage)
        if request.usage is not None and observed is not None:
            groups.add(request, 0, request.usage, observed)
        plain = costs.cost(request, request.used(Split(request.tokens, fresh=request.tokens)))
        uncached += plain if isinstance(plain, int) else 0
        account, found = None, None
        if request.prompt is None:
            residuals[request.missing] += 1
            found = loss_of_counters(request, earlier)
        else:
            prompt = request.scaled()
            try:
                account = judge.account(request, prompt, earlier)
            except InvalidRequestError as error:
                residuals[str(error)] += 1
        if account is not None:
            usage = request.used(account.split)
            cost = costs.cost(request, usage)
            groups.add(request, 1, usage, cost)
            rules[request.index] = cost if isinstance(cost, int) else None
            residuals[_residual(request, earlier, account)] += 1
            if account.split.prompt_tokens:
                found = loss(request, prompt, earlier, kin, account)
            if found is None and kin.elsewhere >= 0 and not account.split.read and _unread(request):
                found = isolated(request, prompt, requests[kin.elsewhere])
        if found is not None:
            losses.append(found)
        split = request.usage.split if request.usage is not None else account.split if account is not None else None
        if split is not None:
            paid = observed if request.usage is not None else rules.get(request.index)
            standings.append(
                Standing(
                    request,
                    split,
                    paid if isinstance(paid, int) else None,
                    plain if isinstance(plain, int) else None,
                )
            )
    losses = _settled(losses)
    losses += wholes(standings, kins, losses)
    timed = [request.at for request in requests if request.timed]
    seconds = timed[-1] - timed[0] if timed else 0.0
    ranked = findings(losses, requests, kins, costs, rules, seconds)
    best, tried = None, []
    if options.what_if:
        moves = [cure.edit for one, cure in ranked if one.code is Code.VOLATILE_PREFIX and cure.edit is not None]
        result = replay(requests, costs, best_placement(requests, kins, costs))
        best = money(result.cost) if result.cost is not None and result.tokens else None
        tried = what_ifs(requests, kins, costs, options.policies, moves=moves, seconds=seconds)
    estimated = sum(request.usage is None and request.prompt is not None for request in requests)
    observed_totals, rule_totals = (tally.totals() for tally in groups.all)
    return Audit(
        len(requests),
        prompt_tokens,
        seconds,
        observed_totals,
        rule_totals,
        money(uncached),
        best,
        tuple(one for one, _ in ranked),
        tuple(tried),
        dict(residuals),
        tuple(unread),
        groups.totals(),
        estimated,
        ERROR_BAND if estimated else None,
    )


_RECURRING = frozenset((Code.BELOW_MINIMUM, Code.MARK_ON_CHANGING_CONTENT, Code.IMPLICIT_BREAKPOINT_ON_SUFFIX))
_OFTEN = 2


def _unread(request: Request) -> bool:
    return request.usage is None or not request.usage.split.read


def _settled(losses: list[Loss]) -> list[Loss]:
    """Without what happens once to every healthy log: a conversation that is still too short to be cached, and a last
    question that is asked anew, so that its mark is of no use."""
    often = Counter((each.code, each.request.provider, each.request.key) for each in losses)
    return [
        each
        for each in losses
        if each.code not in _RECURRING or often[each.code, each.request.provider, each.request.key] >= _OFTEN
    ]


def _residual(request: Request, earlier: Request | None, account: Account) -> str:
    """The named explanation of what was reported beside what the rules give."""
    if request.usage is None:
        return "missing field: the log has no usage"
    split, ruled = request.usage.split, account.split
    apart = split.read - ruled.read
    if not apart:
        return "none: as the rules say"
    if abs(apart) <= max(128, split.prompt_tokens // 20):
        return "tokenizer difference"
    if apart > 0 and (earlier is None or not ruled.read):
        return "unknown earlier traffic"
    if not account.certain:
        return "uncertain rule"
    return "provider irregularity"


__all__ = ["Options", "Policies", "audit"]
