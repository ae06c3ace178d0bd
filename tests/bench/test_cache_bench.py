"""`kvledger bench cache`: what is timed is what is said, with a real tiny model and the real disk tier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvledger.bench.cache import LONG_BLOCKS, BookkeepingBench, ReuseBench
from kvledger.clock import ManualClock
from kvledger.errors import ModelFileError
from tests.cli.test_manners import run
from tests.model.tiny import tiny_gguf


class SteppingClock(ManualClock):
    """Every look at it takes a second."""

    def monotonic(self) -> float:
        self.advance(1)
        return super().monotonic()


def test_bookkeeping_is_divided_by_the_blocks_it_was_done_for() -> None:
    figures = BookkeepingBench(LONG_BLOCKS + 1, clock=SteppingClock()).figures(rounds=1)
    assert figures.pop("bytes_per_block") > 100
    assert figures == {
        "insert_us": pytest.approx(1e6 / LONG_BLOCKS),
        "acquire_100k_ms": 1e3,
        "evict_us": pytest.approx(1e6 / LONG_BLOCKS),
    }


def test_a_model_with_a_short_context_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.context_length": 512})
    with pytest.raises(ModelFileError, match=r"512 tokens and the benchmark needs 4097"):
        ReuseBench(str(path), tmp_path / "kv", threads=1)


@pytest.mark.slow
def test_the_command_prints_every_median_as_json(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "tiny.gguf", metadata={"llama.context_length": 8192})
    result = run("bench", "cache", "--model", str(path), "--blocks", "6250", "--rounds", "1", "--json", "-")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert set(figures) == {
        *("ttft_cold_s", "ttft_ram_s", "ttft_disk_s"),
        *("acquire_100k_ms", "bytes_per_block", "insert_us", "evict_us"),
    }
    assert all(value > 0 for value in figures.values())
    assert figures["ttft_ram_s"] < figures["ttft_cold_s"]
