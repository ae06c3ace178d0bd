"""Conditions under which a run in CI fails: a finding, a hit rate that is too low, money that is wasted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches

from kvledger.audit.findings import Audit, Code
from kvledger.audit.report.text import dollars
from kvledger.errors import AuditError

_RATE = re.compile(r"hit-rate\s*<\s*(?P<number>\d+(\.\d+)?)\s*(?P<percent>%?)")
_WASTE = re.compile(r"waste\s*>\s*\$?(?P<number>\d+(\.\d+)?)\s*(usd)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition; exactly one of the three is set. `hit_rate` is between 0 and 1, `waste` in US dollars."""

    code: Code | None = None
    hit_rate: float | None = None
    waste: Decimal | None = None


def parse_gate(text: str) -> Gate:
    """Read `CODE`, `hit-rate<0.8` (or `hit-rate<80%`) or `waste>5usd`; raises `AuditError` for anything else."""
    wanted = text.strip()
    if rate := _RATE.fullmatch(wanted):
        value = float(rate["number"]) / (100 if rate["percent"] else 1)
        if value > 1:
            raise AuditError(f"--fail-on {wanted[:80]}: a hit rate lies between 0 and 1, or 0% and 100%.")
        return Gate(hit_rate=value)
    if waste := _WASTE.fullmatch(wanted):
        return Gate(waste=Decimal(waste["number"]))
    name = wanted.upper().replace("-", "_")
    if name in Code.__members__:
        return Gate(code=Code[name])
    near = get_close_matches(name, Code.__members__, n=3, cutoff=0.6)
    instead = f"did you mean {' or '.join(near)}?" if near else "give a finding's code, hit-rate<0.8 or waste>5usd."
    raise AuditError(f"--fail-on {wanted[:80]} is no condition: {instead}")


def failure(gate: Gate, audit: Audit) -> str | None:
    """In a sentence why the audit does not pass, None if it does.

    The hit rate is the observed one, or that of the rules for a log without usage. Waste is what all findings together
    lost in this log. What cannot be known does not pass.
    """
    if gate.code is not None:
        found = [finding for finding in audit.findings if finding.code is gate.code]
        requests = sum(finding.requests for finding in found)
        return f"{gate.code.value} in {requests:,} requests" if found else None
    if gate.hit_rate is not None:
        rate = audit.observed.hit_rate if audit.observed.prompt_tokens else audit.rules.hit_rate
        if rate is None:
            return "the hit rate cannot be known: the log has no tokens"
        return f"the hit rate is {rate:.4f}, below {gate.hit_rate:g}" if rate < gate.hit_rate else None
    assert gate.waste is not None
    costs = [finding.cost for finding in audit.findings]
    waste = sum((cost for cost in costs if cost is not None), Decimal(0))
    if waste > gate.waste:
        return f"{dollars(waste)} were wasted, more than {dollars(gate.waste)}"
    if any(cost is None for cost in costs):
        return "the waste cannot be known: a finding has no price"
    return None
