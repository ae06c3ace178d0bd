"""Every report says the same figures, and no text where none is wanted."""

from __future__ import annotations

import json
from decimal import Decimal
from html.parser import HTMLParser
from io import StringIO

import pytest
from rich.console import Console

from kvledger.audit.costs import Costs
from kvledger.audit.findings import Code, Totals
from kvledger.audit.readers.reader import recorded
from kvledger.audit.record import Record, Source
from kvledger.audit.report.codes import MEANINGS
from kvledger.audit.report.gate import failure, parse_gate
from kvledger.audit.report.json import audit_json, audit_object
from kvledger.audit.report.pages import full_page, short_page
from kvledger.audit.report.sarif import audit_sarif
from kvledger.audit.report.text import dollars, shown
from kvledger.audit.report.timeline import Timeline
from kvledger.errors import AuditError
from kvledger.ledger.prices import Prices
from kvledger.page.html import render
from kvledger.page.terminal import show
from tests.audit.report.sample import SECRET, audit


def rows() -> list[Record]:
    """The three rows behind the sample: 10:00, 10:01 and 10:02 of one conversation."""
    counts = [(50, 10000, 0), (60, 500, 10000), (5000, 0, 4000)]
    found = []
    for minute, (fresh, written, read) in enumerate(counts):
        usage = {
            "input_tokens": fresh,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": read,
            "output_tokens": 100,
        }
        found += recorded(
            Source("log.jsonl", minute + 1),
            named="anthropic",
            api="messages",
            model="claude-sonnet-4",
            usage=usage,
            at=1796032800.0 + 60 * minute,
            conversation="s1",
        )
    assert all(isinstance(one, Record) for one in found)
    return [one for one in found if isinstance(one, Record)]


def test_the_json_contract() -> None:
    said = json.loads(audit_json(shown(audit())))
    assert {"requests", "prompt_tokens", "observed", "rules", "findings", "what_if", "unread"} <= said.keys()
    assert said["observed"] | {"unpriced": {}} == said["observed"]
    assert said["observed"]["written"] == {"5m": 10500}
    assert (said["observed"]["hit_rate"], said["observed"]["cost_usd"]) == (14000 / 29610, "0.063405")
    (finding,) = said["findings"]
    assert finding["where"]["path"] == "system[0].text"
    assert len(finding["where"]["before"]) == 80
    assert (finding["cost_usd"], finding["saves_usd"]) == ("0.0207", "0.0189")
    assert finding["change"]["patch"][0]["op"] == "replace"
    assert said["unread"] == [{"file": "log.jsonl", "line": 9, "count": 1, "reason": f"no JSON ({SECRET})"}]


def test_without_text_no_report_has_any() -> None:
    bare = shown(audit(), text=False)
    page = full_page(bare, Timeline(), Costs(Prices()))
    for said in (audit_json(bare), audit_sarif(bare), render(page), terminal(bare)):
        assert SECRET not in said
    assert audit_object(bare)["findings"][0]["where"]["offset"] == 17


def test_sarif_points_at_a_request() -> None:
    said = json.loads(audit_sarif(shown(audit())))
    assert said["version"] == "2.1.0"
    (run,) = said["runs"]
    (result,) = run["results"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "VOLATILE_PREFIX"
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("log.jsonl", 2)


def test_a_screen() -> None:
    said = terminal(shown(audit()))
    assert len(said.splitlines()) <= 45
    for figure in ("14,000", "47.3%", "$0.0634", "VOLATILE_PREFIX", "Move the time", "log.jsonl:9"):
        assert figure in said


def test_a_healthy_log_says_so() -> None:
    healthy = audit(findings=())
    assert "No findings" in terminal(healthy)


def test_html_is_whole_and_fetches_nothing() -> None:
    timeline = Timeline()
    assert len(list(timeline.watch(rows()))) == 3
    text = render(full_page(shown(audit()), timeline, Costs(Prices())))
    assert text.count("<svg") == 3  # spending, flame, gaps
    assert "<script" not in text
    fetched: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            fetched.extend(value or "" for name, value in attrs if name in ("src", "href"))

    Links().feed(text)
    assert not fetched


def test_charts_add_up_to_the_bill() -> None:
    timeline = Timeline()
    list(timeline.watch(rows()))
    spent = timeline.spending(Costs(Prices()))
    assert (spent[-1].observed, spent[-1].uncached) == (Decimal("0.063405"), Decimal("0.09333"))
    (gap,) = [row for row in timeline.by_gap() if row[1]]
    assert gap == ("< 1 min", 2, 14000 / 19560)


@pytest.mark.parametrize(
    ("gate", "fails"),
    [
        ("VOLATILE_PREFIX", True),
        ("volatile-prefix", True),
        ("TTL_EXPIRED", False),
        ("hit-rate<0.8", True),
        ("hit-rate<47%", False),
        ("hit-rate < 0.4728", False),
        ("waste>0.02usd", True),
        ("waste>5usd", False),
        ("waste>$0.0207", False),
    ],
)
def test_gates(gate: str, fails: bool) -> None:
    assert bool(failure(parse_gate(gate), audit())) is fails


@pytest.mark.parametrize("gate", ["", "hit-rate<1.5", "hit-rate>0.5", "VOLATILE_PREFX", "waste>-1", "waste>5eur"])
def test_what_is_no_gate_is_refused(gate: str) -> None:
    with pytest.raises(AuditError):
        parse_gate(gate)


def test_a_near_code_is_offered() -> None:
    with pytest.raises(AuditError, match="VOLATILE_PREFIX"):
        parse_gate("VOLATILE_PREFX")


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Code)


def test_unknown_money_is_never_zero() -> None:
    assert dollars(None) == "unknown"


def terminal(result: object) -> str:
    out = StringIO()
    show(short_page(result), Console(file=out, width=140, highlight=False))  # type: ignore[arg-type]
    return out.getvalue()


def test_no_findings_is_not_said_to_be_health_where_that_is_not_known() -> None:
    unknown = audit(findings=(), rules=Totals(0, 0, {}, 0, 0, Decimal(0), 0))
    assert "what could have been read is not known" in " ".join(terminal(unknown).split())
    wasteful = audit(findings=(), uncached=Decimal("0.05"))
    said = " ".join(terminal(wasteful).split())
    assert "costs more than it saves here: $0.0634 against $0.0500" in said
    assert "could be read from the cache was" not in said
