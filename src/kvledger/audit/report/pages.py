"""The audit as pages: a short one for a terminal, a long one with charts for a file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from kvledger.audit.costs import Costs
from kvledger.audit.findings import Audit, Finding, Totals, WhatIf
from kvledger.audit.report.codes import MEANINGS
from kvledger.audit.report.text import count, dollars, lasting, share
from kvledger.audit.report.timeline import Timeline
from kvledger.page.blocks import Bars, Block, Flame, FlameSegment, Heading, LineChart, Page, Paragraph, Series, Table

_FINDINGS, _POLICIES, _UNREAD = 6, 5, 4
"""Rows on a terminal; files have all."""


def short_page(audit: Audit) -> Page:
    """One screen: the figures, the dearest findings, the best policies, what could not be read."""
    blocks: list[Block] = [_figures(audit), *_notes(audit)]
    found = audit.findings
    if found:
        blocks.append(_findings(found[:_FINDINGS], more=len(found) - _FINDINGS))
        first = found[0]
        blocks.append(Paragraph(f"First: {first.change.text}{_saving(first)}"))
    else:
        blocks.append(_without_findings(audit))
    if audit.what_if and audit.rules.requests:
        blocks.append(_policies(audit.what_if[:_POLICIES]))
    if audit.unread:
        blocks.append(_unread(audit, _UNREAD))
    return Page(_title(audit), blocks)


def _without_findings(audit: Audit) -> Paragraph:
    """That nothing was found, and no more than is known."""
    said = "No findings: what could be read from the cache was."
    if not audit.rules.requests:
        said = "No findings, but none of these requests could be replayed: what could have been read is not known."
    paid = max(audit.observed.cost, audit.rules.cost)
    if audit.uncached and paid > audit.uncached:
        said = (
            f"No single change that gets it back was found, but the cache costs more than it saves here: ${paid:.4f}"
            f" against ${audit.uncached:.4f} without any cache."
        )
        return Paragraph(said, is_warning=True)
    return Paragraph(said)


def full_page(audit: Audit, timeline: Timeline, costs: Costs) -> Page:
    """Everything, with charts."""
    blocks: list[Block] = [_figures(audit), *_notes(audit)]
    blocks += _spending(timeline, costs)
    if audit.findings:
        blocks += [Heading("Where prefixes break"), _flame(audit)]
    gaps = timeline.by_gap()
    if any(n for _, n, _ in gaps):
        bars = [(f"{name} ({n:,})", rate or 0.0, share(rate)) for name, n, rate in gaps if n]
        title = "Tokens read / tokens of prompt, by the time since the conversation's last request (requests)"
        blocks += [Heading("Hit rate by gap"), Bars(title, bars)]
    blocks.append(Heading("Findings"))
    if not audit.findings:
        blocks.append(Paragraph("None: what could be read from the cache was."))
    for finding in audit.findings:
        blocks += _told(finding)
    if audit.what_if and audit.rules.requests:
        blocks += [Heading("What if"), _policies(audit.what_if)]
    for group in ("model", "key"):
        if named := {name: pair for name, pair in audit.groups.get(group, {}).items() if name}:
            rows = [_group_row(name, observed, rules) for name, (observed, rules) in named.items()]
            columns = (group, "requests", "prompt tokens", "hit rate", "by the rules", "cost", "by the rules")
            blocks += [Heading(f"By {group}"), Table(columns, rows)]
    if audit.residuals:
        residuals = sorted(audit.residuals.items(), key=lambda pair: -pair[1])
        table = Table(("reported beside the rules", "requests"), [(name, count(n)) for name, n in residuals])
        blocks += [Heading("Where the provider's figures and the rules differ"), table]
    if audit.unread:
        blocks += [Heading("Not read"), _unread(audit, len(audit.unread))]
    return Page(_title(audit), blocks)


def _title(audit: Audit) -> str:
    over = f" over {lasting(audit.seconds)}" if audit.seconds else ""
    return f"Audit of {count(audit.requests)} requests, {count(audit.prompt_tokens)} prompt tokens{over}"


def _figures(audit: Audit) -> Table:
    observed, rules = audit.observed, audit.rules
    columns = ["", "observed", "by the rules"]
    lifetimes = sorted({*observed.written, *rules.written})
    rows = [["requests", count(observed.requests), count(rules.requests)]]
    rows.append(["prompt tokens", count(observed.prompt_tokens), count(rules.prompt_tokens)])
    rows.append(["read", count(observed.read), count(rules.read)])
    for ttl in lifetimes:
        rows.append([f"written {ttl}", count(observed.written.get(ttl, 0)), count(rules.written.get(ttl, 0))])
    rows.append(["fresh", count(observed.fresh), count(rules.fresh)])
    rows.append(["output", count(observed.output), count(rules.output)])
    rows.append(["hit rate (read / prompt tokens)", share(observed.hit_rate), share(rules.hit_rate)])
    rows.append(["cost", dollars(observed.cost), dollars(rules.cost)])
    if not rules.requests:  # a log of usage alone: nothing was replayed
        rows = [[name, told, "-"] for name, told, _ in rows]
    return Table(columns, rows)


def _notes(audit: Audit) -> list[Block]:
    best = "" if audit.best is None or not audit.rules.requests else f", with the best marks {dollars(audit.best)}"
    notes: list[Block] = [Paragraph(f"Without any cache: {dollars(audit.uncached)}{best}.")]
    for reason, requests in audit.observed.unpriced.items():
        notes.append(Paragraph(f"{count(requests)} requests are in no sum of money: {reason}.", is_warning=True))
    return notes


def _findings(findings: Sequence[Finding], *, more: int = 0) -> Table:
    columns = ("finding", "requests", "tokens", "cost", "a month", "saves", "where")
    rows = [
        (
            finding.code.value,
            count(finding.requests),
            count(finding.tokens),
            dollars(finding.cost),
            "-" if finding.monthly is None else dollars(finding.monthly),
            dollars(finding.saves),
            finding.where.path if finding.where else "",
        )
        for finding in findings
    ]
    if more > 0:
        rows.append((f"and {more} more", "", "", "", "", "", ""))
    return Table(columns, rows, numeric=(1, 2, 3, 4, 5))


def _told(finding: Finding) -> list[Block]:
    proof = "" if finding.proven else " Usage alone suggests it; bodies would show it."
    detail = f" {finding.detail}" if finding.detail else ""
    source = f"{finding.example.file}:{finding.example.line}"
    blocks: list[Block] = [
        _findings([finding]),
        Paragraph(f"{MEANINGS[finding.code]}{detail}{proof}\nTo do: {finding.change.text}{_saving(finding)}"),
    ]
    where = finding.where
    if where is not None and (where.before or where.after):
        at = f"{where.path}" + ("" if where.offset is None else f", character {where.offset}")
        blocks.append(Table((f"{at} ({source})", ""), [("before", where.before), ("after", where.after)], numeric=()))
    return blocks


def _saving(finding: Finding) -> str:
    return "" if finding.saves is None else f" Saves {dollars(finding.saves)} in this log."


def _policies(what_if: Sequence[WhatIf]) -> Table:
    rows = []
    for one in what_if:
        cost = one.unknown or dollars(one.cost)
        if one.low is not None and one.high is not None and one.low != one.high:
            cost += f" ({dollars(one.low)} to {dollars(one.high)})"
        rows.append((one.text, share(one.hit_rate), cost))
    return Table(("what if", "hit rate", "cost"), rows)


def _unread(audit: Audit, most: int) -> Table:
    rows = [
        (f"{one.source.file}:{one.source.line}", one.reason + (f" ({one.count:,} times)" if one.count > 1 else ""))
        for one in audit.unread[:most]
    ]
    lines = sum(one.count for one in audit.unread)
    if len(audit.unread) > most:
        rows.append(("...", f"{len(audit.unread) - most:,} more, all with --json"))
    return Table((f"not read: {lines:,}", "why"), rows, numeric=())


def _group_row(name: str, observed: Totals, rules: Totals) -> tuple[str, ...]:
    rates = share(observed.hit_rate), share(rules.hit_rate)
    tokens = observed.prompt_tokens or rules.prompt_tokens
    requests = observed.requests or rules.requests
    return (name, count(requests), count(tokens), *rates, dollars(observed.cost), dollars(rules.cost))


def _spending(timeline: Timeline, costs: Costs) -> list[Block]:
    spent = timeline.spending(costs)
    if len(spent) < 2 or not spent[-1].uncached:
        return []
    first = spent[0].at
    hours = [(each.at - first) / 3600 for each in spent]
    series = [
        Series("without a cache", list(zip(hours, (float(each.uncached) for each in spent), strict=True))),
        Series("as billed", list(zip(hours, (float(each.observed) for each in spent), strict=True))),
    ]
    chart = LineChart("Spend since the log began, in US dollars", "hours", "US dollars", series)
    return [Heading("Spend over time, with and without the cache"), chart]


def _flame(audit: Audit) -> Flame:
    """Tokens of all prompts, then those lost by the segment of the body in which prefixes break, then by place."""
    total = max(audit.prompt_tokens, sum(finding.tokens for finding in audit.findings), 1)
    segments: dict[str, list[Finding]] = defaultdict(list)
    for finding in audit.findings:
        path = finding.where.path if finding.where else "between requests"
        segments[path.partition("[")[0].partition(".")[0] or path].append(finding)
    rows: list[list[FlameSegment]] = [[FlameSegment("all prompts", 0.0, 1.0, f"{total:,} tokens")], [], []]
    at = 0.0
    for name, findings in sorted(segments.items(), key=lambda pair: -sum(one.tokens for one in pair[1])):
        tokens = sum(one.tokens for one in findings)
        rows[1].append(FlameSegment(name, at, tokens / total, f"{name}: {tokens:,} tokens lost"))
        inner = at
        for one in findings:
            place = one.where.path if one.where else ""
            told = f"{one.code.value} {place}: {one.tokens:,} tokens, {dollars(one.cost)}"
            rows[2].append(FlameSegment(f"{one.code.value} {place}".strip(), inner, one.tokens / total, told))
            inner += one.tokens / total
        at += tokens / total
    return Flame("Tokens lost behind each place, of all tokens of prompts", rows)
