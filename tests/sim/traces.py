"""Small traces for the tests of this room: as arrays from lists of ids, and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvledger.sim.paths import Paths
from kvledger.sim.trace import Trace

BLOCK = 4


def trace_of(
    requests: Sequence[Sequence[int]], times: Sequence[float] | None = None, sessions: Sequence[int] | None = None
) -> Trace:
    """A trace of requests given by their block ids; every block is full."""
    lengths = np.array([len(ids) for ids in requests], np.int64)
    asked = np.array([id for ids in requests for id in ids], np.int64)
    paths = Paths()
    nodes = paths.walk(asked, np.cumsum(lengths), np.zeros(len(requests), np.int32))
    return Trace(
        format="test",
        block_size=BLOCK,
        tail="",
        nodes=nodes,
        sizes=np.full(len(asked), BLOCK, np.int32),
        ends=np.cumsum(lengths),
        input_tokens=BLOCK * lengths,
        times=np.zeros(len(requests)) if times is None else np.array(times, np.float64),
        sessions=None if sessions is None else np.array(sessions, np.int64),
        num_nodes=paths.count,
    )


@st.composite
def request_lists(draw: st.DrawFn, max_requests: int = 40) -> list[list[int]]:
    """Requests of few different blocks, so that they share, and some that go on from earlier ones."""
    requests: list[list[int]] = []
    for _ in range(draw(st.integers(1, max_requests))):
        start: list[int] = []
        if requests and draw(st.booleans()):
            earlier = requests[draw(st.integers(0, len(requests) - 1))]
            start = earlier[: draw(st.integers(0, len(earlier)))]
        requests.append(start + draw(st.lists(st.integers(0, 3), max_size=5)))
    return requests


@st.composite
def timed_traces(draw: st.DrawFn) -> Trace:
    requests = draw(request_lists())
    gaps = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0]), min_size=len(requests), max_size=len(requests)))
    return trace_of(requests, np.cumsum(gaps).tolist())


def write_lines(path: Path, lines: Sequence[Any]) -> Path:
    """JSON lines; text is written as it is, broken or not."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mooncake(time: float, tokens: int, ids: Sequence[int], **others: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": tokens, "output_length": 1, "hash_ids": list(ids), **others}
