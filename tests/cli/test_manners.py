"""What every verb has in common: help, exit codes, and errors of one sentence."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvledger import cli
from kvledger.errors import DownloadError, ModelFileError

VERBS = ("serve", "generate", "tokens", "pull", "bench", "cache")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from kvledger.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_every_verb():
    result = run("--help")
    assert result.returncode == 0
    assert all(verb in result.stdout for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb):
    result = run(verb, "--help")
    assert result.returncode == 0
    assert f"kvledger {verb}" in result.stdout or "Usage" in result.stdout


def test_nothing_heavy_is_imported_for_help():
    script = (
        "import sys, kvledger.cli; print([m for m in ('numba', 'numpy', 'tokenizers', 'uvicorn') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_version():
    assert run("--version").stdout.startswith("kvledger 0.")


@pytest.mark.parametrize("arguments", [("nonsense",), ("serve", "--nonsense"), ("serve", "--port", "x")])
def test_wrong_usage_exits_with_2(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (ModelFileError("The file x is not a GGUF."), 2, "kvledger: The file x is not a GGUF.\n"),
        (DownloadError("The download broke off."), 1, "kvledger: The download broke off.\n"),
        (OSError(28, "No space left on device"), 1, "kvledger: No space left on device.\n"),
        (OSError(2, "No such file or directory", "/no/x"), 1, "kvledger: /no/x: No such file or directory.\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_one_sentence_and_an_exit_code(monkeypatch, capsys, error, code, says):
    def fails() -> None:
        raise error

    app = cli.typer.Typer()
    app.command()(fails)
    monkeypatch.setattr(cli, "app", app)
    monkeypatch.setattr(sys, "argv", ["kvledger"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == code
    assert capsys.readouterr().err == says
