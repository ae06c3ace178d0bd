"""How figures are written for people, and what of a prompt is shown at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from kvledger.audit.findings import Audit, Change, Finding, Where
from kvledger.audit.record import Unread

EXCERPT = 80
"""Characters of a prompt that are shown at most."""

LEFT_OUT = "(left out)"
_MARKS = ("cache_control", "prompt_cache_breakpoint", "cachePoint")


def shown(audit: Audit, *, text: bool = True) -> Audit:
    """The audit as it may be shown: excerpts cut to `EXCERPT` characters, and without `text` none at all.

    Then no piece of a prompt is left anywhere: no excerpts, no values in patches but cache marks, no explanations that
    quote, and of reasons only what stands before a quotation.
    """
    findings = tuple(_finding(finding, text) for finding in audit.findings)
    unread = audit.unread if text else tuple(_unquoted(one) for one in audit.unread)
    return replace(audit, findings=findings, unread=unread)


def dollars(amount: Decimal | None) -> str:
    """An amount with as many places as its size asks for; `unknown` is never zero."""
    if amount is None:
        return "unknown"
    size = abs(amount)
    places = 2 if size >= 10 or not size else 4 if size >= Decimal("0.01") else 6
    return f"${amount:,.{places}f}"


def share(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.1%}"


def count(tokens: int) -> str:
    return f"{tokens:,}"


def lasting(seconds: float) -> str:
    """A duration in the unit that suits it."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def _finding(finding: Finding, text: bool) -> Finding:
    where = finding.where
    if where is not None:
        sides = (where.before[:EXCERPT], where.after[:EXCERPT]) if text else ("", "")
        where = Where(where.path, where.offset, *sides)
    if text:
        return replace(finding, where=where)
    patch = tuple(
        {**step, **({"value": _bare(step["value"])} if "value" in step else {})} for step in finding.change.patch
    )
    return replace(finding, where=where, change=Change(finding.change.text, patch), detail="")


def _bare(value: Any) -> Any:
    """A patch's value with its marks and without its text."""
    if isinstance(value, Mapping):
        return {name: inner if name in _MARKS else _bare(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_bare(inner) for inner in value]
    if isinstance(value, str):
        return value if value in ("ephemeral", "5m", "1h", "30m", "12h", "24h", "text") else LEFT_OUT
    return value


def _unquoted(one: Unread) -> Unread:
    return replace(one, reason=one.reason.partition(" (")[0])
