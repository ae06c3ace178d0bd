"""What a workload costs, as JSON and as a page."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec

from kvledger.page.blocks import Block, Heading, Page, Paragraph, Table
from kvledger.plan.cost import CostPlan

_NOTES = (
    "Requests are made up from the workload's token counts and replayed through each provider's dated rules; prices are"
    " list prices. Token counts are taken to be the same everywhere.",
    "Conversations are spread evenly: real traffic comes in bursts, which keeps more in the cache.",
)


def cost_record(plan: CostPlan) -> dict[str, Any]:
    """A cost plan as plain values. Money is US dollars a month, in strings; null where a price is unknown."""
    return {
        "workload": msgspec.to_builtins(plan.workload),
        "requests_simulated": plan.choices[0].requests if plan.choices else 0,
        "choices": [
            {
                "provider": choice.provider,
                "model": choice.model,
                "mode": choice.mode,
                "text": choice.text,
                "cost_usd": _exact(choice.cost),
                "uncached_usd": _exact(choice.uncached),
                "highest_usd": _exact(choice.highest),
                "certain": choice.certain,
                "prompt_tokens": choice.prompt_tokens,
                "read": choice.read,
                "written": dict(choice.written),
                "saved_work": choice.saved_work,
                "unknown": list(choice.unknown),
            }
            for choice in plan.choices
        ],
        "break_even": [{"model": each.name, "what": each.what, "reads": each.reads} for each in plan.break_evens],
        "levers": [{"text": lever.text, "cost_usd": _exact(lever.cost)} for lever in plan.levers],
        "advice": None
        if plan.workload.advice is None
        else {
            "text": plan.workload.advice.text,
            "confirmed": {name: holds for name, (holds, _) in plan.advice_holds.items()},
            "saves": {name: f"{saved:.4f}" for name, (_, saved) in plan.advice_holds.items()},
        },
        "notes": list(_NOTES),
    }


def cost_page(plan: CostPlan) -> Page:
    """A cost plan for a person."""
    workload = plan.workload
    blocks: list[Block] = [
        Paragraph(
            f"{plan.choices[0].requests if plan.choices else 0:,} requests in {workload.hours:g} hours were simulated;"
            f" costs are in US dollars for a month of {workload.hours_per_month:g} such hours."
        ),
        Table(
            ("model", "way", "cost", "no cache", "saved", "read", "certain"),
            [
                (
                    choice.name,
                    choice.mode,
                    _shown(choice.cost),
                    _shown(choice.uncached),
                    _share(choice.cost, choice.uncached),
                    f"{choice.saved_work:.0%}",
                    "yes" if choice.certain else f"up to {_shown(choice.highest)}",
                )
                for choice in plan.choices
            ],
            numeric=(2, 3, 4, 5),
        ),
    ]
    blocks += [
        Paragraph(f"{choice.name}, {choice.mode}: {'; '.join(choice.unknown)}.", is_warning=True)
        for choice in plan.choices
        if choice.unknown
    ]
    blocks.append(Heading("The ways to cache"))
    ways = dict.fromkeys((choice.provider, choice.mode.removesuffix(", batch"), choice.text) for choice in plan.choices)
    blocks.append(Table(("provider", "way", "what it is"), sorted(ways), numeric=()))
    blocks.append(
        Paragraph(
            "Saved is of the cost without a cache; it is negative where writing is paid and never read. Read is"
            " the share of prompt tokens that come from the cache. A cost that is not certain rests on a best-effort or"
            " undocumented rule: up to what it may be."
        )
    )
    if workload.advice is not None:
        blocks.append(Heading("The usual advice"))
        blocks.append(Paragraph(workload.advice.text))
        rows = [
            (name, f"{saved:.0%}", "confirmed" if holds else "refuted")
            for name, (holds, saved) in plan.advice_holds.items()
        ]
        blocks.append(Table(("model", "saves", "the advice is"), rows, numeric=(1,)))
    if plan.break_evens:
        blocks.append(Heading("When it pays"))
        rows = [(each.name, each.what, f"{each.reads:,}") for each in plan.break_evens]
        blocks.append(Table(("model", "to pay for", "reads needed"), rows, numeric=(2,)))
    if plan.levers:
        blocks.append(Heading("What else could be done"))
        blocks.append(Table(("change", "cost"), [(lever.text, _shown(lever.cost)) for lever in plan.levers]))
    blocks += [Paragraph(note) for note in _NOTES]
    return Page(workload.title, blocks)


def _exact(cost: Decimal | None) -> str | None:
    return None if cost is None else f"{cost:f}"


def _shown(cost: Decimal | None) -> str:
    return "unknown" if cost is None else f"{cost:,.2f}"


def _share(cost: Decimal | None, uncached: Decimal | None) -> str:
    return "-" if cost is None or not uncached else f"{1 - cost / uncached:.0%}"
