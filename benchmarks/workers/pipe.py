"""How `peers.py` and `multiturn.py` tell a worker process what to do.

A worker prints `{"ready": DESCRIPTION}` once its model is loaded, then reads one `Work` per line of JSON from standard
input and answers each with `{"seconds": S}`, or `{"error": SENTENCE}`. Workers whose names end in `_chat` read
`{"tokens": IDS, "max_tokens": N}` instead and answer `{"tokens": IDS, "cached": N or null}`. Answers go to a pipe of
their own, since engines print what they like on standard output. A worker needs its engine and the standard library,
nothing else: `kvledger.bench.work`, which says what work there is, imports no more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvledger.bench.work import Work


@dataclass(frozen=True)
class Options:
    """What the driver tells a worker when it starts it. `answers` is the file descriptor of the pipe for answers."""

    model: Path
    threads: int
    setting: str
    answers: int


def options() -> Options:
    """Read the command line that `peers.py` gives each worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("threads", type=int)
    parser.add_argument("setting")
    parser.add_argument("answers", type=int)
    return Options(**vars(parser.parse_args()))


def serve(given: Options, description: str, measure: Callable[[Work], float]) -> None:
    """Serve until standard input closes: `measure(work)` returns the seconds that the timed part took."""
    answer(given, description, lambda message: {"seconds": measure(Work(**message))})


def answer(given: Options, description: str, reply_to: Callable[[dict[str, Any]], dict[str, object]]) -> None:
    """Answer every message until standard input closes."""
    with os.fdopen(given.answers, "w", buffering=1) as pipe:
        print(json.dumps({"ready": description}), file=pipe)
        for line in sys.stdin:
            try:
                reply = reply_to(json.loads(line))
            except Exception as error:  # the driver reports it and goes on with the other engines
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=pipe)
