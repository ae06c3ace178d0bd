"""`kvledger explain` as it is typed, on a folder with a tokenizer and no weights where none are needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvledger.cli import app
from kvledger.errors import ExplainError, InvalidRequestError, ModelNotFoundError
from tests.text.vocabularies import byte_level_json, write_json


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write_json(folder, byte_level_json())
    return str(folder)


def run(*arguments: str):
    return CliRunner().invoke(app, ["explain", *arguments])


def test_attention(tmp_path: Path):
    assert "0.34274" in run("attention", "--demo").output
    assert json.loads(run("attention", "--json", "-").output)["k_from_w_k"][0] == [0.16, 0.35, 0.17, 0.43]
    page = tmp_path / "attention.html"
    assert run("attention", "--html", str(page)).exit_code == 0
    assert "neither follows" in page.read_text(encoding="utf-8")


def test_prefix(model, tmp_path: Path):
    (tmp_path / "b.txt").write_text("abcY")
    record = json.loads(run("prefix", "abcX", f"@{tmp_path}/b.txt", "--model", model, "--json", "-").output)
    assert record["reused_tokens"] == 3


def test_bpe(model, tmp_path: Path):
    (word,) = json.loads(run("bpe", "hello", "--model", model, "--json", "-").output)["words"]
    assert word["pieces"] == ["hello"]
    text = tmp_path / "text.txt"
    text.write_text("cat cat hat")
    record = json.loads(
        run("bpe", "hat", "--model", model, "--train", str(text), "--merges", "1", "--json", "-").output
    )
    assert record["training"]["merges"] == [{"pair": ["a", "t"], "count": 3, "tokens_left": 8}]
    assert record["words"][0]["pieces"] == ["h", "at"]
    assert "step" in run("bpe", "--model", model, "--train", str(text)).output


def test_chat_without_weights(smollm2_path: Path, tmp_path: Path):
    file = tmp_path / "chat.json"
    file.write_text(json.dumps([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]))
    options = ("--model", str(smollm2_path), "--bill", "deepseek:deepseek-v4-flash", "--json", "-")
    record = json.loads(run("chat", str(file), *options).output)
    assert len(record["turns"]) == 1
    assert record["bills"][0]["provider"] == "deepseek"
    assert float(record["bills"][0]["usd"]) > 0


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("prefix", "", "b"), ExplainError),
        (("prefix", "a", "@/no/such/file"), ExplainError),
        (("bpe",), ExplainError),
        (("bpe", "\udcff"), InvalidRequestError),
        (("bpe", "xyz", "--train", __file__, "--merges", "-1"), ExplainError),
        (("bpe", "x", "--train", "/no/such/file"), ExplainError),
        (("chat", "/no/such/file"), ExplainError),
    ],
)
def test_bad_input(model, arguments, error):
    assert isinstance(run(*arguments, "--model", model).exception, error)


def test_an_unknown_model():
    assert isinstance(run("bpe", "x", "--model", "smolm2").exception, ModelNotFoundError)
