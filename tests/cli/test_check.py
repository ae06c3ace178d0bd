"""`kvledger check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvledger.cli import app


def check(path: Path, body: Any, *more: str) -> Any:
    path.write_text(json.dumps(body))
    done = CliRunner().invoke(app, ["check", str(path), "--at", "2026-11-30", "--json", "-", *more])
    assert done.exit_code == 0, done.output
    return {one["provider"]: one for one in json.loads(done.stdout)}


def claude(size: int, **mark: Any) -> Any:
    system = [{"type": "text", "text": "word" * size, **mark}]
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 5,
        "system": system,
        "messages": [{"role": "user", "content": "x"}],
    }


MARK = {"cache_control": {"type": "ephemeral"}}


def test_a_marked_body_above_the_minimum_caches(tmp_path: Path) -> None:
    said = check(tmp_path / "b.json", claude(5000, **MARK), "--provider", "anthropic")["anthropic"]
    assert said["caches"]
    assert (said["written"], said["read_again"]) == ({"5m": 5000}, 5000)
    assert said["marks"][0]["ttl"] == "5m"


def test_below_the_minimum_it_does_not_and_says_the_number(tmp_path: Path) -> None:
    said = check(tmp_path / "b.json", claude(100, **MARK), "--provider", "anthropic")["anthropic"]
    assert not said["caches"]
    assert said["minimum_tokens"] == 1024
    assert any("1024" in why["detail"].replace(",", "") for why in said["why"])


def test_without_a_provider_all_that_serve_the_model(tmp_path: Path) -> None:
    said = check(tmp_path / "b.json", claude(5000))
    assert "anthropic" in said
    assert not said["anthropic"]["caches"]
    assert "deepseek" not in said
