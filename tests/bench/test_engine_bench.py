"""What is measured: the regimes, the chunks and steps they turn into, and the command that shows the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvledger.bench import engine
from kvledger.bench.process import StartError, start_seconds
from kvledger.bench.work import REGIMES, Work, prompts
from kvledger.clock import ManualClock
from kvledger.errors import ModelFileError
from tests.model.tiny import tiny_gguf


class ScriptedModel:
    """Takes one second per forward pass and remembers what it was asked for."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.shapes: list[list[tuple[int, int, int]]] = []
        self.config = None

    def forward(self, runs, pool):
        self.clock.advance(1)
        self.shapes.append([(run.start, len(run.tokens), run.num_logits) for run in runs])
        for run in runs:
            assert len(run.table) * 16 >= run.start + len(run.tokens)
        blocks = [block for run in runs for block in run.table]
        assert len(blocks) == len(set(blocks)), "two sequences share a block"
        return np.zeros((sum(run.num_logits for run in runs), 320), np.float32)


@pytest.fixture
def bench(tmp_path: Path) -> engine.EngineBench:
    """A bench of a real tiny model whose forward pass is scripted."""
    path = tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.context_length": 4096})
    clock = ManualClock()
    bench = engine.EngineBench(path, clock=clock, threads=1)
    model = ScriptedModel(clock)
    model.config = bench.model.config
    bench.model = model
    return bench


def test_prefill_is_computed_in_chunks_and_asks_for_one_row_of_logits(bench: engine.EngineBench) -> None:
    assert bench.seconds(Work("prefill", batch=1, depth=1100, steps=0)) == 3
    assert bench.model.shapes == [[(0, 512, 0)], [(512, 512, 0)], [(1024, 76, 1)]]
    assert bench.tokens_per_second(Work("prefill", batch=1, depth=1100, steps=0)) == pytest.approx(1100 / 3)


def test_only_the_steps_of_decode_are_timed(bench: engine.EngineBench) -> None:
    work = Work("decode", batch=3, depth=20, steps=4)
    assert bench.seconds(work) == 4
    assert bench.model.shapes[:3] == [[(0, 20, 1)]] * 3
    assert bench.model.shapes[3:] == [[(20 + step, 1, 1)] * 3 for step in range(4)]
    assert bench.tokens_per_second(work) == 3.0


def test_every_regime_fits_the_pool(bench: engine.EngineBench) -> None:
    for work in REGIMES:
        bench.seconds(work)


def test_prompts_are_the_same_in_every_process() -> None:
    work = Work("decode_8", batch=2, depth=5, steps=1)
    script = "from kvledger.bench.work import *; print(prompts(Work('decode_8', 2, 5, 1), 320))"
    elsewhere = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert str(prompts(work, 320)) == elsewhere.strip()
    assert all(0 <= token < 320 for row in prompts(work, 320) for token in row)


def test_a_model_with_a_short_context_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.context_length": 512})
    with pytest.raises(ModelFileError, match=r"512 tokens and the benchmark needs 2072"):
        engine.EngineBench(path)


def test_peak_memory_grows_with_what_is_used() -> None:
    # In a process of its own: a peak that other tests have reached would hide this one.
    source = (
        "import numpy as np; from kvledger.bench.process import peak_rss; before = peak_rss();"
        " block = np.ones(256 << 20, np.uint8); print(peak_rss() - before)"
    )
    grown = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
    assert int(grown) > 128 << 20


def test_a_server_that_does_not_start_is_reported_with_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="did not start: kvledger: "):
        start_seconds(tmp_path / "missing.gguf", tmp_path)


@pytest.mark.slow
def test_the_command_prints_every_median_as_json(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.context_length": 4096})
    command = [sys.executable, "-c", "from kvledger.cli import main; main()", "bench", "engine"]
    done = subprocess.run(
        [*command, "--model", str(path), "--rounds", "1", "--json", "-"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert set(figures) == {
        *(f"{regime}_tps" for regime in ("prefill_512", "prefill_2048", "decode_1", "decode_8", "decode_16")),
        *("decode_1_at_2048_tps", "peak_rss_mb", "kv_pool_mb", "start_cold_s", "start_warm_s"),
    }
    assert all(value > 0 for value in figures.values())
    assert figures["start_warm_s"] < figures["start_cold_s"]
