"""The findings as SARIF 2.1.0 (OASIS), which code hosts and editors show beside the file."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from kvledger import __version__
from kvledger.audit.findings import Audit, Code, Finding
from kvledger.audit.report.codes import MEANINGS
from kvledger.audit.report.text import dollars
from kvledger.ledger.money import plain

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def audit_sarif(audit: Audit) -> str:
    """A log with one run; each finding points at one of its requests."""
    rules = [{"id": code.value, "shortDescription": {"text": MEANINGS[code]}} for code in Code]
    driver = {"name": "kvledger", "version": __version__, "rules": rules}
    unread = [
        {
            "level": "warning",
            "message": {"text": one.reason},
            "locations": [_location(one.source.file, one.source.line)],
        }
        for one in audit.unread
    ]
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": unread}],
        "results": [_result(finding) for finding in audit.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, ensure_ascii=False)


def _result(finding: Finding) -> dict[str, Any]:
    place = f" at {finding.where.path}" if finding.where else ""
    what = f"{MEANINGS[finding.code]} {finding.requests:,} requests, {finding.tokens:,} tokens{place}."
    money = f" Cost {dollars(finding.cost)}, saves {dollars(finding.saves)}. {finding.change.text}"
    return {
        "ruleId": finding.code.value,
        "ruleIndex": list(Code).index(finding.code),
        "level": "warning" if finding.proven else "note",
        "message": {"text": what + money},
        "locations": [_location(finding.example.file, finding.example.line)],
        "properties": {
            "requests": finding.requests,
            "tokens": finding.tokens,
            "cost_usd": None if finding.cost is None else plain(finding.cost),
            "saves_usd": None if finding.saves is None else plain(finding.saves),
        },
    }


def _location(file: str, line: int) -> dict[str, Any]:
    uri = PurePath(file).as_posix()
    return {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": max(line, 1)}}}
