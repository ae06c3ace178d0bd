"""`kvledger plan` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import KvledgerError, PlanError
from tests.plan.shapes import CONFIG


def run(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments])


def test_memory_as_json():
    result = run("memory", "--model", "llama-3-70b", "--context", "8192", "--concurrency", "8", "--kv-dtype", "fp16")
    assert result.exit_code == 0
    assert "2,684,354,560" in result.output
    options = ("--gpu", "h100-80gb", "--gpus", "4", "--json", "-")
    record = json.loads(run("memory", "--model", "llama-3-70b", "--context", "8192", *options).output)
    assert record["kv_bytes_per_request"] == 2_684_354_560
    assert record["fits"] is True
    assert record["max_concurrency"] > 8


def test_memory_of_a_file_and_as_html(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    page = tmp_path / "memory.html"
    result = run("memory", "--model", str(tmp_path / "config.json"), "--context", "100", "--html", str(page))
    assert result.exit_code == 0
    assert "beyond the 64 tokens" in page.read_text(encoding="utf-8")


def test_gpu():
    arguments = ("--model", "llama-3-8b", "--gpu", "h100-80gb", "--price-per-hour", "2.50")
    assert "Why output is dearer" in run("gpu", *arguments).output
    record = json.loads(run("gpu", *arguments, "--json", "-").output)
    cost = {name: float(amount) for name, amount in record["cost_per_million"].items()}
    assert cost["output"] > cost["input"] > cost["cached_input"] > 0


def test_lists():
    assert "llama-3-70b" in run("models").output
    assert "h100-80gb" in run("gpus").output


@pytest.mark.parametrize(
    "arguments",
    [
        ("memory", "--model", "llama-9"),
        ("memory", "--model", "llama-3-8b", "--gpu", "h101"),
        ("memory", "--model", "llama-3-8b", "--context", "0"),
        ("memory", "--model", "llama-3-8b", "--kv-dtype", "fp7"),
        ("memory", "--model", "llama-3-8b", "--gpu", "h100-80gb", "--utilization", "nan"),
        ("memory", "--model", ""),
        ("gpu", "--model", "llama-3-70b", "--gpu", "h100-80gb"),
        ("gpu", "--model", "llama-3-8b", "--gpu", "h100-80gb", "--price-per-hour", "NaN"),
        ("gpu", "--model", "llama-3-8b", "--gpu", "h100-80gb", "--price-per-hour", "two"),
    ],
)
def test_bad_input_is_one_sentence(arguments):
    error = run(*arguments).exception
    assert isinstance(error, PlanError)
    assert isinstance(error, KvledgerError)
    assert str(error).endswith(".") or str(error).endswith("?")
    assert "\n" not in str(error)
