"""The audit as JSON; docs/audit.md describes the schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from kvledger.audit.findings import Audit, Finding, Totals, WhatIf
from kvledger.audit.record import Source
from kvledger.ledger.money import plain

VERSION = 1
"""Of the schema: fields may be added under it, none is renamed or taken away."""


def audit_json(audit: Audit) -> str:
    """One JSON object: money as decimal strings, null where it is unknown."""
    return json.dumps(audit_object(audit), indent=2, ensure_ascii=False)


def audit_object(audit: Audit) -> dict[str, Any]:
    """The object that `audit_json` writes."""
    return {
        "version": VERSION,
        "requests": audit.requests,
        "prompt_tokens": audit.prompt_tokens,
        "seconds": audit.seconds,
        "estimated": {"requests": audit.estimated, "error_band": audit.error_band},
        "observed": _totals(audit.observed),
        "rules": _totals(audit.rules),
        "uncached_cost_usd": _usd(audit.uncached),
        "best_cost_usd": _usd(audit.best),
        "findings": [_finding(finding) for finding in audit.findings],
        "what_if": [_what_if(one) for one in audit.what_if],
        "residuals": dict(audit.residuals),
        "groups": {
            group: {
                name: {"observed": _totals(observed), "rules": _totals(rules)}
                for name, (observed, rules) in found.items()
            }
            for group, found in audit.groups.items()
        },
        "unread": [{**_source(one.source), "count": one.count, "reason": one.reason} for one in audit.unread],
    }


def _pair(observed: Totals, rules: Totals) -> dict[str, Any]:
    return {"observed": _totals(observed), "rules": _totals(rules)}


def _totals(totals: Totals) -> dict[str, Any]:
    return {
        "requests": totals.requests,
        "prompt_tokens": totals.prompt_tokens,
        "read": totals.read,
        "written": dict(totals.written),
        "fresh": totals.fresh,
        "output": totals.output,
        "hit_rate": totals.hit_rate,
        "cost_usd": _usd(totals.cost),
        "unpriced": dict(totals.unpriced),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    where = finding.where
    place = None
    if where is not None:
        place = {"path": where.path, "offset": where.offset, "before": where.before, "after": where.after}
    return {
        "code": finding.code.value,
        "requests": finding.requests,
        "tokens": finding.tokens,
        "cost_usd": _usd(finding.cost),
        "monthly_usd": _usd(finding.monthly),
        "where": place,
        "change": {"text": finding.change.text, "patch": [dict(step) for step in finding.change.patch]},
        "saves_usd": _usd(finding.saves),
        "proven": finding.proven,
        "detail": finding.detail,
        "example": _source(finding.example),
    }


def _what_if(one: WhatIf) -> dict[str, Any]:
    return {
        "name": one.name,
        "text": one.text,
        "cost_usd": _usd(one.cost),
        "hit_rate": one.hit_rate,
        "low_usd": _usd(one.low),
        "high_usd": _usd(one.high),
        "unknown": one.unknown,
    }


def _source(source: Source) -> dict[str, Any]:
    return {"file": source.file, "line": source.line}


def _usd(amount: Decimal | None) -> str | None:
    return None if amount is None else plain(amount)
