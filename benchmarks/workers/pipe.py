"""How `peers.py` tells a worker process what to do.

A worker prints `{"ready": DESCRIPTION}` once its model is loaded, then reads one `Work` per line as JSON and answers
each with `{"seconds": S}`, or `{"error": SENTENCE}`. It needs its own engine and the standard library, nothing else:
`kvledger.bench.work`, which says what work there is, imports no more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvledger.bench.work import Work


@dataclass(frozen=True)
class Options:
    """What the driver tells a worker when it starts it: the model file, threads, and one setting of the engine."""

    model: Path
    threads: int
    setting: str


def options() -> Options:
    """Read the command line that `peers.py` gives each worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("setting")
    given = parser.parse_args()
    return Options(given.model, given.threads, given.setting)


def answer(description: str, measure: Callable[[Work], float]) -> None:
    """Serve the pipe until it closes: `measure(work)` returns the seconds that the timed part took."""
    pipe = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever the engine prints must not reach the pipe
    print(json.dumps({"ready": description}), file=pipe)
    for line in sys.stdin:
        try:
            reply: dict[str, object] = {"seconds": measure(Work(**json.loads(line)))}
        except Exception as error:  # the driver reports it and goes on with the other engines
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=pipe)
