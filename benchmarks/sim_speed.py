"""How fast `kvledger sim` is, alone and beside `kvcache-simulator`: prints one JSON object.

    python benchmarks/sim_speed.py [--accesses 10000000] [--peer PYTHON]

Writes a trace of the given number of block accesses in the shape of Mooncake's: conversations behind one common block,
half of the requests going on from an earlier one, about 25 blocks a request. Each measurement runs in a process of its
own, which also tells its peak memory. Times are wall clock; loops are compiled before, in a run that is thrown away.

`--peer` is the Python of an environment with kvcache-simulator (0.1.3 was used), whose C++ core then replays the same
trace at the same capacities. Its hits in the last half must be the same.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

BLOCK = 512
CAPACITIES = (1_000, 10_000, 100_000)

OURS = """
import json, resource, sys, time
from pathlib import Path
from kvledger.sim.curve import Curve
from kvledger.sim.reading import read_trace
from kvledger.sim.replay import MISS, replay
from kvledger.sim.score import score
path, capacities, what = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
start = time.perf_counter()
trace = read_trace(path)
read = time.perf_counter()
if what == "curve":
    curve = Curve.of(trace)
    scores = [curve.at(size) for size in capacities]
else:
    scores = [score(trace, replay(trace, size, policy="lru") != MISS) for size in capacities]
end = time.perf_counter()
print(json.dumps({
    "requests": trace.num_requests, "accesses": len(trace.nodes), "distinct_blocks": trace.num_nodes,
    "read_s": read - start, "simulate_s": end - read,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    "last_half_token_hits": [each.last_half.token.hits for each in scores],
}))
"""

PEER = """
import json, sys, time
from kvcache_sim.cpp_backend import ensure_cpp_simulator, run_cpp_sweep
from kvcache_sim.trace import parse_trace_lines
capacities = json.loads(sys.argv[2])
ensure_cpp_simulator()
start = time.perf_counter()
with open(sys.argv[1]) as file:
    trace = parse_trace_lines(file, block_size=512)
read = time.perf_counter()
result = run_cpp_sweep(trace, capacities=capacities, policies=["lru"], warmup_requests=trace.request_count // 2)
end = time.perf_counter()
print(json.dumps({
    "read_s": read - start, "simulate_s": end - read,
    "last_half_token_hits": [result.results[("lru", size)].hitTokens for size in capacities],
}))
"""


def write_trace(path: Path, accesses: int) -> None:
    rng = random.Random(1)
    conversations: list[list[int]] = []
    fresh, written, time = 1, 0, 0.0
    with path.open("w") as file:
        while written < accesses:
            time += rng.expovariate(1 / 300)
            at = None
            if conversations and rng.random() < 0.55:
                at = -1 - int(min(rng.expovariate(1 / 200), len(conversations) - 1))
                ids = conversations[at][:-1]
                added = 1 + max(1, min(40, int(rng.lognormvariate(1.2, 1))))
            else:
                ids = [0]
                added = max(1, min(250, int(rng.lognormvariate(2.6, 1))))
            ids = ids + list(range(fresh, fresh + added))
            fresh += added
            if len(ids) > 250:
                continue
            if at is None:
                conversations = [*conversations[-20_000:], ids] if len(conversations) > 30_000 else conversations
                conversations.append(ids)
            else:
                conversations[at] = ids
            length = (len(ids) - 1) * BLOCK + rng.randrange(1, BLOCK)
            record = {"timestamp": int(time), "input_length": length, "output_length": 100, "hash_ids": ids}
            file.write(json.dumps(record) + "\n")
            written += len(ids)


def measured(python: str, program: str, *arguments: str) -> dict[str, Any]:
    result = subprocess.run([python, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in json.loads(result.stdout).items()
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accesses", type=int, default=10_000_000)
    parser.add_argument("--peer", help="a Python with kvcache-simulator")
    options = parser.parse_args()
    capacities = json.dumps(CAPACITIES)
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.jsonl", Path(folder) / "large.jsonl"
        write_trace(small, 1_000)
        measured(sys.executable, OURS, str(small), capacities, "curve")
        write_trace(large, options.accesses)
        curve = measured(sys.executable, OURS, str(large), capacities, "curve")
        figures: dict[str, Any] = {"capacities_blocks": CAPACITIES, "lru_curve": curve}
        figures["accesses_per_second"] = round(curve["accesses"] / (curve["read_s"] + curve["simulate_s"]))
        if options.peer:
            peer = measured(options.peer, PEER, str(large), capacities)
            figures["kvcache_simulator"] = peer
            figures["same_hits"] = peer["last_half_token_hits"] == curve["last_half_token_hits"]
        write_trace(small, min(options.accesses, 500_000))
        cache = measured(sys.executable, OURS, str(small), json.dumps(CAPACITIES[1:2]), "replay")
        figures["real_cache"] = cache
        figures["real_cache_accesses_per_second"] = round(cache["accesses"] / cache["simulate_s"])
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
