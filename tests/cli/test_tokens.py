"""`kvledger tokens` on a tiny model file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import InvalidRequestError, ModelFileError, ModelNotFoundError
from tests.model.tiny import tiny_gguf
from tests.text.vocabularies import byte_level, byte_level_json, write_json


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tokenizer and no weights: they are not needed."""
    folder = tmp_path_factory.mktemp("model")
    write_json(folder, byte_level_json())
    return str(folder)


def run(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(app, ["tokens", *arguments], input=stdin, catch_exceptions=True)


def test_pieces_ids_and_bytes(model):
    result = run("hello é\n", "--model", model)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    tokens = byte_level().encode("hello é\n")
    assert rows[0] == ["hello␣é\\n"]
    assert rows[3] == ["hello", str(tokens[0]), "68", "65", "6c", "6c", "6f"]
    assert [row[0] for row in rows[4:8]] == ["␣", "\\xc3", "\\xa9", "\\n"]
    assert rows[-1] == ["5", "tokens,", "9", "bytes"]


def test_json(model):
    result = run("hello é", "--model", model, "--json")
    record = json.loads(result.output)
    assert record["model"] == model
    assert [(token["text"], token["bytes"]) for token in record["tokens"]] == [
        ("hello", "68656c6c6f"),
        (" ", "20"),
        (None, "c3"),
        (None, "a9"),
    ]
    assert [token["id"] for token in record["tokens"]] == byte_level().encode("hello é")


def test_special_tokens_on_request_only(model):
    def ids(*options: str) -> list[int]:
        return [
            token["id"]
            for token in json.loads(run("<|im_end|>", "--model", model, "--json", *options).output)["tokens"]
        ]

    assert ids("--special") == [2]
    assert 2 not in ids()


def test_standard_input(model):
    assert "2 tokens, 2 bytes" in run("-", "--model", model, stdin="x\n").output


def test_no_text_has_no_tokens(model):
    assert "0 tokens, 0 bytes" in run("", "--model", model).output


def test_a_text_can_do_nothing_to_the_terminal(model):
    output = run("\x1b[2J[red]x\x07", "--model", model).output
    assert "\x1b" not in output
    assert "\x07" not in output
    assert "\\x1b[2J[red]x\\x07" in output


def test_a_gguf_file(tmp_path: Path):
    path = tiny_gguf(tmp_path / "tiny.gguf", format="F32")
    assert run("the cache", "--model", str(path)).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("x", "--model", "no-such-model"), ModelNotFoundError),
        (("x", "--model", __file__), ModelFileError),
        (("\udcff",), InvalidRequestError),
    ],
)
def test_errors(model, arguments, error):
    if "--model" not in arguments:
        arguments = (*arguments, "--model", model)
    assert isinstance(run(*arguments).exception, error)
