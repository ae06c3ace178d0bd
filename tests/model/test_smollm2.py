"""The real SmolLM2: golden numbers, greedy text, perplexity. Skipped where the model has not been pulled."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvledger.model import reference
from kvledger.model.batch import Run
from kvledger.model.kv import KVPool
from kvledger.model.llama import LlamaModel
from kvledger.model.weights import Weights, load

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden_smollm2.json").read_text())
TEXT = (HERE.parents[1] / "LICENSE").read_text()
CONTEXT = 2048
PART = 256  # positions whose logits are in memory at once


@pytest.fixture(scope="module")
def weights(smollm2_path: Path) -> Weights:
    return load(smollm2_path)


@pytest.fixture(scope="module")
def exact(weights: Weights) -> LlamaModel:
    return LlamaModel(weights, mode="exact", kv_dtype="f32", context=CONTEXT)


class Reader:
    """One sequence in a pool of its own."""

    def __init__(self, model: LlamaModel) -> None:
        self.model = model
        self.position = 0
        num_blocks = CONTEXT // KVPool.block_size
        self.table = np.arange(num_blocks, dtype=np.int32)
        self.pool = KVPool(model.config, num_blocks, model.kv_dtype)

    def read(self, tokens: list[int]) -> NDArray[np.float32]:
        """The logits after each of the next tokens, valid until the next call."""
        run = Run(np.array(tokens, np.int32), self.position, self.table, len(tokens))
        self.position += len(tokens)
        return self.model.forward([run], self.pool)


def test_golden_numbers(exact: LlamaModel) -> None:
    logits = Reader(exact).read(GOLDEN["tokens"])
    for row in GOLDEN["positions"]:
        here = logits[row["position"]]
        assert np.argsort(-here)[:8].tolist() == row["top_ids"]
        assert here[row["top_ids"]].tolist() == pytest.approx(row["top"], abs=5e-4)
        assert here[GOLDEN["fixed_ids"]].tolist() == pytest.approx(row["fixed"], abs=5e-4)


def test_48_greedy_tokens_are_the_reference(exact: LlamaModel, weights: Weights) -> None:
    reader, tokens = Reader(exact), list(GOLDEN["tokens"])
    start, logits = len(tokens), reader.read(tokens)
    for _ in range(48):
        tokens.append(int(logits[-1].argmax()))
        logits = reader.read(tokens[-1:])
    # One pass over the finished text: each token is what the reference would have chosen after all before it.
    expected = reference.logits(weights, tokens[:-1])[start - 1 :].argmax(axis=1)
    assert tokens[start:] == expected.tolist()


def perplexity(model: LlamaModel, tokens: list[int]) -> float:
    """exp of the mean loss, in nats, of each token but the first."""
    reader, loss = Reader(model), 0.0
    for first in range(0, len(tokens) - 1, PART):
        part = tokens[first : min(first + PART, len(tokens) - 1)]
        logits = reader.read(part).astype(np.float64)
        following = logits[np.arange(len(part)), tokens[first + 1 : first + 1 + len(part)]]
        peak = logits.max(axis=1)
        loss += float((np.log(np.exp(logits - peak[:, None]).sum(axis=1)) + peak - following).sum())
    return float(np.exp(loss / (len(tokens) - 1)))


@pytest.fixture(scope="module")
def tokens(weights: Weights) -> list[int]:
    tokens = weights.tokenizer.encode(TEXT)[:2000]
    assert len(tokens) == 2000
    return tokens


@pytest.fixture(scope="module")
def exact_perplexity(exact: LlamaModel, tokens: list[int]) -> float:
    return perplexity(exact, tokens)


@pytest.mark.parametrize(("mode", "kv_dtype"), [("fast", "f16"), ("fast", "bf16"), ("fast", "int8"), ("exact", "f16")])
def test_perplexity_stays(
    weights: Weights, tokens: list[int], exact_perplexity: float, mode: str, kv_dtype: str
) -> None:
    model = LlamaModel(weights, mode=mode, kv_dtype=kv_dtype, context=CONTEXT)
    assert perplexity(model, tokens) == pytest.approx(exact_perplexity, rel=0.005)
