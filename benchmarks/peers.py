"""Run the same work on our engine and on every peer that is installed, side by side, and print the ratios.

    python benchmarks/peers.py --model SmolLM2-135M-Instruct.Q4_1.gguf --python-of ../peers-venv --rounds 5

Every engine, in every setting worth trying, is a process of its own with its model loaded, held to the same cores. In
each round every regime visits all of them in turn, so that a machine that slows down slows all of them; only one
computes at a time, and the others are checked to be idle. The figure of an engine in a regime is the median over
rounds of its best setting. How to set up the peers: `benchmarks/README.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from kvledger.bench.work import REGIMES, WARM_UP, Work

HERE = Path(__file__).resolve().parent
PATHS = [HERE, HERE.parent / "src"]  # what workers import from, besides their own environment
OURS = "kvledger"


@dataclass(frozen=True)
class Engine:
    """An engine that can be measured: its module in `workers`, and the settings of which the better one counts."""

    module: str
    settings: tuple[str, ...]


ENGINES = {
    OURS: Engine("workers.ours", ("fast",)),
    "llama.cpp": Engine("workers.llama_cpp", ("fa-on", "fa-off")),
    "openvino": Engine("workers.openvino", ("default", "f32")),
    "transformers": Engine("workers.transformers", ("float32",)),
    "transformers-bf16": Engine("workers.transformers", ("bfloat16",)),
    "vllm": Engine("workers.vllm", ("float32", "bfloat16")),
}


class Worker:
    """A running engine in one setting. Always `close` it."""

    def __init__(self, name: str, module: str, setting: str, python: Path, model: Path, threads: int) -> None:
        self.name, self.setting, self.description = name, setting, ""
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in `close`)
        answers, end_of_worker = os.pipe()
        self._answers = os.fdopen(answers)
        self._process = subprocess.Popen(
            [python, "-P", "-m", module, model, str(threads), setting, str(end_of_worker)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PATHS))},
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            bufsize=1,
            pass_fds=[end_of_worker],
        )
        os.close(end_of_worker)

    def wait_until_ready(self) -> bool:
        """Whether the engine could be loaded."""
        self.description = str(self._reply().get("ready", ""))
        return bool(self.description)

    def measure(self, work: Work) -> float | str:
        """Tokens per second, or the sentence that says why not."""
        reply = self.ask(asdict(work))
        return str(reply["error"]) if "error" in reply else work.num_tokens / float(str(reply["seconds"]))

    def ask(self, message: object) -> dict[str, object]:
        """The worker's reply, or `{"error": SENTENCE}`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
        except BrokenPipeError:
            return {"error": self.last_words()}
        return self._reply() or {"error": self.last_words()}

    def cpu_seconds(self) -> float:
        """Processor time that the process itself has used so far; 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def last_words(self) -> str:
        """The last line that the process printed."""
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return lines[-1] if lines else "it ended without a word"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()
        self._log.close()

    def _reply(self) -> dict[str, object]:
        line = self._answers.readline()
        reply: dict[str, object] = json.loads(line) if line else {}
        return reply


def start(
    names: list[str], pythons: list[Path], model: Path, threads: int, engines: Mapping[str, Engine] | None = None
) -> list[Worker]:
    """Start the workers one after another, a peer by the first of `pythons` that has it.

    Those that do not come up are left out, with a line that says why. `engines` are `ENGINES` unless given.
    """
    workers = []
    for name in names:
        engine = (engines or ENGINES)[name]
        for setting in engine.settings:
            reasons = []
            for python in [Path(sys.executable)] if name == OURS else pythons:
                worker = Worker(name, engine.module, setting, python, model, threads)
                if worker.wait_until_ready():
                    note(f"{name} ({setting}): {worker.description}")
                    workers.append(worker)
                    break
                reasons.append(worker.last_words())
                worker.close()
            else:
                note(f"left out: {name} ({setting}): {'; '.join(dict.fromkeys(reasons))}")
    return workers


Samples = dict[tuple[str, str, str], list[float]]  # (engine, regime, setting) -> tokens/s, one per round


def run(workers: list[Worker], rounds: int, regimes: list[Work]) -> Samples:
    """Visit every worker with every regime `rounds` times, after one visit that only warms it up."""
    samples: Samples = defaultdict(list)
    for worker in workers:
        worker.measure(WARM_UP)
    for number in range(rounds):
        for work in regimes:
            for worker in workers:
                others = [other for other in workers if other is not worker]
                idle, start_time = sum(other.cpu_seconds() for other in others), time.monotonic()
                speed = worker.measure(work)
                elapsed = time.monotonic() - start_time
                busy = sum(other.cpu_seconds() for other in others) - idle
                if busy > 0.05 * elapsed + 0.05:
                    note(f"idle workers took {busy:.2f} s of processor time in the {elapsed:.2f} s of {worker.name}")
                if isinstance(speed, str):
                    note(f"{worker.name} ({worker.setting}) failed at {work.name}: {speed}")
                else:
                    samples[worker.name, work.name, worker.setting].append(speed)
        note(f"round {number + 1} of {rounds} done, load {os.getloadavg()[0]:.1f}")
    return samples


@dataclass(frozen=True)
class Figure:
    """Tokens per second of one engine in one regime: the setting with the better median."""

    setting: str
    median: float
    best: float
    rounds: list[float]


def figures(samples: Samples) -> dict[str, dict[str, Figure]]:
    """Engine -> regime -> figure."""
    chosen: dict[str, dict[str, Figure]] = defaultdict(dict)
    for (engine, regime, setting), speeds in samples.items():
        figure = Figure(setting, statistics.median(speeds), max(speeds), speeds)
        rival = chosen[engine].get(regime)
        if rival is None or figure.median > rival.median:
            chosen[engine][regime] = figure
    return chosen


def ratios(chosen: dict[str, dict[str, Figure]]) -> dict[str, dict[str, float]]:
    """Peer -> regime -> our median over the peer's."""
    ours = chosen.get(OURS, {})
    return {
        peer: {regime: ours[regime].median / figure.median for regime, figure in row.items() if regime in ours}
        for peer, row in chosen.items()
        if peer != OURS and ours
    }


def table(chosen: dict[str, dict[str, Figure]], regimes: list[Work]) -> str:
    """A Markdown table: median tokens/s (best), and how many times as fast as the peer we are."""
    lines = ["| regime | " + " | ".join(chosen) + " |", "|---" * (len(chosen) + 1) + "|"]
    factors = ratios(chosen)
    for work in regimes:
        cells = [work.name]
        for engine, row in chosen.items():
            if work.name not in row:
                cells.append("-")
                continue
            figure = row[work.name]
            factor = factors.get(engine, {}).get(work.name)
            cells.append(f"{figure.median:.0f} ({figure.best:.0f})" + (f" **{factor:.2f}x**" if factor else ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report(model: Path, workers: list[Worker], chosen: dict[str, dict[str, Figure]]) -> dict[str, object]:
    """Everything measured, for `--json`."""
    return {
        "model": model.name,
        "engines": {worker.name: worker.description for worker in workers},
        "tokens_per_second": {engine: {k: vars(v) for k, v in row.items()} for engine, row in chosen.items()},
        "ratios": ratios(chosen),
        "load": os.getloadavg(),
    }


def note(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument(
        "--python-of",
        type=Path,
        nargs="+",
        metavar="VENV",
        help="the environments of the peers (default: this one)",
    )
    parser.add_argument("--peers", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all installed")
    parser.add_argument("--regimes", nargs="+", choices=[work.name for work in REGIMES], help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="cores, and threads, for every engine")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured ('-': standard output)")
    return parser.parse_args()


def main() -> None:
    given = parse()
    if not given.model.is_file():
        sys.exit(f"{given.model}: no such file; `kvledger pull smollm2` prints where the default model is")
    pythons = [venv / "bin" / "python" for venv in given.python_of or ()] or [Path(sys.executable)]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])  # the workers inherit it
    regimes = [work for work in REGIMES if given.regimes is None or work.name in given.regimes]
    workers = start(given.peers, pythons, given.model.resolve(), given.threads)
    if not workers:
        sys.exit("no engine could be started, so there is nothing to measure")
    try:
        chosen = figures(run(workers, given.rounds, regimes))
    finally:
        for worker in workers:
            worker.close()
    written = json.dumps(report(given.model, workers, chosen), indent=2)
    if given.json == Path("-"):
        print(written)
        return
    print(table(chosen, regimes))
    if given.json:
        given.json.write_text(written + "\n")


if __name__ == "__main__":
    main()
