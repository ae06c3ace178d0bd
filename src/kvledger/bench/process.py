"""What a process costs: the time until a server answers, and memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

from kvledger.clock import Clock, SystemClock
from kvledger.errors import KvledgerError

SERVE = (sys.executable, "-c", "from kvledger.cli import main; main()", "serve", "--port", "0")


class StartError(KvledgerError):
    """The server that was to be timed did not come up."""


def start_seconds(model: Path, kernels: Path, *, clock: Clock | None = None) -> float:
    """Start `kvledger serve` on `model`, with compiled kernels kept in `kernels`, and stop it once it says it is ready.

    An empty folder `kernels` makes it a cold start, a folder that an earlier start has filled a warm one.
    """
    clock = clock or SystemClock()
    start = clock.monotonic()
    with subprocess.Popen(
        [*SERVE, "--model", str(model)],
        env=os.environ | {"NUMBA_CACHE_DIR": str(kernels)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        greeting = server.stdout.readline()  # the server prints to standard output only when it listens
        elapsed = clock.monotonic() - start
        server.terminate()
        if not greeting:
            last_words = server.stderr.read().strip().splitlines()[-1:]
            raise StartError(f"kvledger serve did not start: {' '.join(last_words)}")
    return elapsed


def peak_rss() -> int:
    """The most bytes of physical memory that this process has held at once."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:  # not Linux
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    # Not ru_maxrss: on Linux that still counts the program which this process was before it became this one.
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
