"""Results as plain values for JSON, each figure with what it is a part of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvledger.sim.capacity import UNLIMITED
from kvledger.sim.curve import Curve
from kvledger.sim.fleet import ROUTERS
from kvledger.sim.policies import POLICIES
from kvledger.sim.replay import DISK, MISS, RAM
from kvledger.sim.score import DEFINITIONS, Ratio, Score, Window, score
from kvledger.sim.simulate import ORDERS, Run, Setup, simulate
from kvledger.sim.trace import Trace

_SHOWN_LINES = 20


@dataclass(frozen=True, slots=True)
class Series:
    """Scores of one policy by size in blocks."""

    policy: str
    points: tuple[tuple[int, Score], ...]


def series(trace: Trace, policy: str, sizes: Sequence[int] | None, *, curve: Curve) -> Series:
    """One policy at chosen sizes; if there are none, at up to 100 that show the LRU `curve`, or 12 for others."""
    sizes = sizes or curve.sizes(100 if policy == "lru" else 12)
    if policy == "lru":
        return Series(policy, tuple((size, curve.at(size)) for size in sizes))
    return Series(
        policy,
        tuple(
            (size, score(trace, simulate(trace, Setup(ram_blocks=size, policy=policy)).found != MISS)) for size in sizes
        ),
    )


def of_run(trace: Trace, setup: Setup, run: Run) -> dict[str, Any]:
    """What `sim run --json` writes."""
    result: dict[str, Any] = {
        "requests": trace.num_requests,
        **of_score(score(trace, run.found != MISS)),
        "definitions": DEFINITIONS,
        "cache": {
            "capacity_tokens": _tokens(setup.ram_blocks, trace),
            "capacity_blocks": UNLIMITED if setup.ram_blocks is None else setup.ram_blocks,
            "policy": setup.policy,
            "policy_rule": POLICIES[setup.policy],
            "order": setup.order,
            "order_rule": ORDERS[setup.order],
            "ttl_seconds": setup.ttl,
        },
        "trace": of_trace(trace),
    }
    if setup.has_disk:
        result["cache"]["disk_tokens"] = _tokens(setup.disk_blocks, trace)
        result["tiers"] = {
            "ram": of_score(score(trace, run.found == RAM)),
            "disk": of_score(score(trace, run.found == DISK)),
        }
    if setup.replicas > 1:
        result["fleet"] = {
            "replicas": setup.replicas,
            "capacity": "of each replica",
            "router": setup.router,
            "router_rule": ROUTERS[setup.router],
            "by_replica": _by_replica(trace, setup, run),
        }
    return result


def of_curve(trace: Trace, curve: Curve, all_series: Sequence[Series]) -> dict[str, Any]:
    """What `sim curve --json` writes."""
    return {
        "requests": trace.num_requests,
        "lru_end_tokens": curve.end * trace.block_size,
        "lru_end": "the least capacity that no larger LRU cache improves on",
        "unlimited": of_score(curve.at(None)),
        "curves": [
            {
                "policy": each.policy,
                "policy_rule": POLICIES[each.policy],
                "points": [
                    {"capacity_tokens": size * trace.block_size, "capacity_blocks": size, **of_score(result)}
                    for size, result in each.points
                ],
            }
            for each in all_series
        ],
        "definitions": DEFINITIONS,
        "trace": of_trace(trace),
    }


def of_score(result: Score) -> dict[str, Any]:
    return {"whole": _of_window(result.whole), "last_half": _of_window(result.last_half)}


def of_trace(trace: Trace) -> dict[str, Any]:
    return {
        "format": trace.format,
        "block_size": trace.block_size,
        "tail": trace.tail,
        "requests": trace.num_requests,
        "blocks": len(trace.nodes),
        "distinct_blocks": trace.num_nodes,
        "input_tokens": int(trace.input_tokens.sum()),
        "skipped_lines": len(trace.skipped),
        "skipped": [{"line": each.line, "why": each.why} for each in trace.skipped[:_SHOWN_LINES]],
        "notes": list(trace.notes),
    }


def _of_window(window: Window) -> dict[str, Any]:
    return {
        "block": _of_ratio(window.block),
        "full_block": _of_ratio(window.full_block),
        "token": _of_ratio(window.token),
    }


def _of_ratio(ratio: Ratio) -> dict[str, Any]:
    return {"hits": ratio.hits, "of": ratio.of, "ratio": ratio.value}


def _tokens(blocks: int | None, trace: Trace) -> int | str:
    return UNLIMITED if blocks is None else blocks * trace.block_size


def _by_replica(trace: Trace, setup: Setup, run: Run) -> list[dict[str, Any]]:
    owner = np.repeat(run.homes, trace.lengths)
    requests = np.bincount(run.homes, minlength=setup.replicas).tolist()
    blocks = np.bincount(owner, minlength=setup.replicas).tolist()
    hits = np.bincount(owner[run.found != MISS], minlength=setup.replicas).tolist()
    return [
        {"requests": count, "block": _of_ratio(Ratio(hit, of))}
        for count, hit, of in zip(requests, hits, blocks, strict=True)
    ]
