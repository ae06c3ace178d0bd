"""The bookkeeping of a prompt cache, without a model: ours, vLLM's and SGLang's, in one run.

    python benchmarks/cache_peers.py --python-of ../vllm-venv ../sglang-venv

The same random prompts of 100,000 tokens go into a cache of `--blocks` blocks of 16 tokens: inserted, looked up,
evicted. The measures are those of `kvledger bench cache`. A tree that keeps a whole prompt in one node has next to
nothing to do here; what differs is what it can share, evict and tell by the block.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from peers import PATHS, note

from kvledger import __version__
from kvledger.bench.cache import BookkeepingBench

PEERS = {"vllm": "workers.vllm_blocks", "sglang": "workers.sglang_blocks"}
NAMES = ("insert_us", "acquire_100k_ms", "evict_us", "bytes_per_block")


def measure(name: str, pythons: list[Path], blocks: int) -> dict[str, object] | None:
    """The figures of a peer by the first interpreter that has it; None, and a line that says why, if none has."""
    reasons = []
    for python in pythons:
        done = subprocess.run(
            [python, "-P", "-m", PEERS[name], str(blocks)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines:
            figures: dict[str, object] = json.loads(lines[-1])
            return figures
        reasons.append((done.stderr.strip().splitlines() or ["it ended without a word"])[-1])
    note(f"left out: {name}: {'; '.join(dict.fromkeys(reasons))}")
    return None


def table(rows: list[dict[str, object]]) -> str:
    lines = ["| engine | " + " | ".join(NAMES) + " |", "|---" * (len(NAMES) + 1) + "|"]
    for row in rows:
        lines.append(f"| {row['engine']} | " + " | ".join(f"{float(str(row[name])):.2f}" for name in NAMES) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--python-of", type=Path, nargs="+", metavar="VENV", help="the environments of the peers")
    parser.add_argument("--blocks", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured ('-': standard output)")
    given = parser.parse_args()
    pythons = [venv / "bin" / "python" for venv in given.python_of or ()] or [Path(sys.executable)]
    rows: list[dict[str, object]] = [
        {"engine": f"kvledger {__version__}", **BookkeepingBench(given.blocks).figures(rounds=1)}
    ]
    rows += [row for name in PEERS if (row := measure(name, pythons, given.blocks)) is not None]
    written = json.dumps(rows, indent=2)
    if given.json == Path("-"):
        print(written)
        return
    print(table(rows))
    if given.json:
        given.json.write_text(written + "\n")


if __name__ == "__main__":
    main()
