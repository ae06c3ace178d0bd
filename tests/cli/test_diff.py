"""`kvledger diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvledger.cli import app


def body(folder: Path, name: str, system: str, *said: str) -> str:
    messages = [{"role": "user", "content": text} for text in said]
    made = {"model": "claude-sonnet-4-5", "max_tokens": 5, "system": system, "messages": messages}
    (folder / name).write_text(json.dumps(made))
    return str(folder / name)


def diff(*arguments: str) -> Any:
    done = CliRunner().invoke(app, ["diff", *arguments, "--json", "-"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_first_difference_with_both_sides(tmp_path: Path) -> None:
    said = diff(body(tmp_path, "a", "same" * 10, "one two"), body(tmp_path, "b", "same" * 10, "one six"))
    assert said["shared_tokens"] == 10
    assert said["difference"]["level"] == "messages"
    assert said["difference"]["offset"] == 4
    assert (said["difference"]["before"], said["difference"]["after"]) == ("one two", "one six")


def test_a_continued_conversation_differs_nowhere(tmp_path: Path) -> None:
    said = diff(body(tmp_path, "a", "s", "one"), body(tmp_path, "b", "s", "one", "two"))
    assert said["difference"] is None


def test_no_text(tmp_path: Path) -> None:
    said = diff(body(tmp_path, "a", "s", "one"), body(tmp_path, "b", "s", "two"), "--no-text")
    assert said["difference"]["before"] == said["difference"]["after"] == ""
