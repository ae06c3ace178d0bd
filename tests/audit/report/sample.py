"""An audit built by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from kvledger.audit.findings import Audit, Change, Code, Finding, Totals, WhatIf, Where
from kvledger.audit.record import Source, Unread

SECRET = "Bearer of the secret"

OBSERVED = Totals(29610, 14000, {"5m": 10500}, 5110, 300, Decimal("0.063405"), 3)
RULES = Totals(29610, 20000, {"5m": 4500}, 5110, 300, Decimal("0.05"), 3, {"no price is known": 1})

FINDING = Finding(
    Code.VOLATILE_PREFIX,
    requests=2,
    tokens=6000,
    cost=Decimal("0.0207"),
    saves=Decimal("0.0189"),
    monthly=Decimal("12.50"),
    where=Where("system[0].text", 17, f"{SECRET} <10:00>" + "x" * 200, f"{SECRET} <10:01>"),
    change=Change(
        "Move the time to the last message.", ({"op": "replace", "path": "/system/0/text", "value": SECRET},)
    ),
    example=Source("log.jsonl", 2),
    detail=f"It is a time: {SECRET}.",
)


def audit(*findings: Finding, **changes: object) -> Audit:
    """The three rows of a well-known case, with findings."""
    made = Audit(
        requests=3,
        prompt_tokens=29610,
        seconds=120.0,
        observed=OBSERVED,
        rules=RULES,
        uncached=Decimal("0.09333"),
        best=Decimal("0.04"),
        findings=findings or (FINDING,),
        what_if=(WhatIf("ttl-1h", "all writes for 1 h", Decimal("0.07"), 0.5, Decimal("0.06"), Decimal("0.08")),),
        residuals={"none: as the rules say": 3},
        unread=(Unread(Source("log.jsonl", 9), f"no JSON ({SECRET})"),),
        groups={"model": {"anthropic:claude-sonnet-4": (OBSERVED, RULES)}},
    )
    return replace(made, **changes)  # type: ignore[arg-type]
