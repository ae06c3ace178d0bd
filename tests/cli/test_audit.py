"""`kvledger audit`, whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import AuditError, InvalidRequestError
from tests.audit.readers.logs_of import turn, write

GOLDEN = Path(__file__).parents[2].parent / "shared" / "cases" / "usage-golden.json"


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments])


def cases() -> list[Any]:
    return json.loads(GOLDEN.read_text())["cases"] if GOLDEN.exists() else []


@pytest.mark.skipif(not GOLDEN.exists(), reason="the shared cases are not beside the checkout")
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_golden_cases_to_the_last_digit(tmp_path: Path, case: Any) -> None:
    log = write(tmp_path / "log.jsonl", *(case.get("records") or case["lines"]))
    said = json.loads(run(str(log), "--json", "-", "--no-what-if").stdout)
    expected = case["expected"]
    assert said["observed"]["cost_usd"] == expected["total_cost"]
    if "prompt_tokens" in expected:
        assert said["prompt_tokens"] == expected["prompt_tokens"]
        assert said["observed"]["read"] == expected.get("cache_read_tokens", said["observed"]["read"])
        assert said["observed"]["fresh"] == expected.get("fresh_input_tokens", said["observed"]["fresh"])
    if ratio := expected.get("hit_ratio"):
        assert said["observed"]["hit_rate"] == ratio["numerator"] / ratio["denominator"]
    if uncached := expected.get("same_traffic_without_caching"):
        assert said["uncached_cost_usd"] == uncached
    for rebuild in expected.get("rebuilds", ()):
        (finding,) = said["findings"]
        assert (finding["code"], finding["tokens"]) == ("TTL_EXPIRED", rebuild["tokens_rewritten"])
        assert finding["cost_usd"] == rebuild["premium"]


def test_ccusage_1762_a_response_in_two_files_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", turn("a", "m", 5))
    write(tmp_path / "b.jsonl", turn("b", "m", 7), turn("b", "n", 6))
    said = json.loads(run(str(tmp_path), "--json", "-", "--no-what-if").stdout)
    assert (said["requests"], said["observed"]["output"]) == (2, 13)


def test_all_reports_at_once_and_the_gate(tmp_path: Path) -> None:
    log = write(tmp_path / "s.jsonl", turn("a", "m", 5), turn("a", "n", 5))
    files = [tmp_path / name for name in ("a.json", "a.html", "a.sarif")]
    targets = [
        str(part)
        for option, file in zip(("--json", "--html", "--sarif"), files, strict=True)
        for part in (option, file)
    ]
    done = run(str(log), "--no-text", *targets, "--fail-on", "hit-rate<0.99")
    assert done.exit_code == 1
    assert all(file.stat().st_size for file in files)
    assert run(str(log), "--fail-on", "waste>5usd", "--no-what-if").exit_code == 0


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    done = run(str(write(tmp_path / "x.jsonl", "garbage")))
    assert isinstance(done.exception, AuditError)
    assert "x.jsonl:1" in str(done.exception)


def test_two_documents_do_not_share_standard_output(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("{}")
    result = run(str(path), "--json", "-", "--sarif", "-")
    assert isinstance(result.exception, InvalidRequestError)
