"""The reference: against transformers (golden numbers), and each of its parts against arithmetic done by hand."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvledger.model.config import RopeScaling, rope_frequencies
from kvledger.model.reference import logits, rms_norm, rotate, softmax
from kvledger.model.weights import load
from tests.model.test_config import TINY
from tests.model.tiny import tiny_folder, tiny_gguf

HERE = Path(__file__).parent
FAMILIES = json.loads((HERE / "golden_families.json").read_text())["cases"]
TOKENS = [5, 99, 17, 200, 3, 42, 42, 150]


@pytest.mark.parametrize("case", FAMILIES, ids=lambda case: case["name"])
def test_every_family_equals_transformers(tmp_path: Path, case: dict[str, Any]) -> None:
    computed = logits(load(tiny_folder(tmp_path, **case["tiny_folder"])), case["tokens"])
    for position, expected in case["logits"].items():
        assert computed[int(position)][case["ids"]].tolist() == pytest.approx(expected, abs=3e-5)


def test_smollm2_equals_transformers(smollm2_path: Path) -> None:
    golden = json.loads((HERE / "golden_smollm2.json").read_text())
    weights = load(smollm2_path)
    assert weights.tokenizer.encode(golden["text"]) == golden["tokens"]
    computed = logits(weights, golden["tokens"])
    for row in golden["positions"]:
        here = computed[row["position"]]
        assert np.argsort(-here)[:8].tolist() == row["top_ids"]
        assert here[row["top_ids"]].tolist() == pytest.approx(row["top"], abs=3e-4)
        assert here[golden["fixed_ids"]].tolist() == pytest.approx(row["fixed"], abs=3e-4)


def test_later_tokens_do_not_change_earlier_logits(tmp_path: Path) -> None:
    weights = load(tiny_gguf(tmp_path / "a.gguf"))
    whole = logits(weights, TOKENS)
    for length in range(1, len(TOKENS)):
        assert np.allclose(logits(weights, TOKENS[:length]), whole[:length], rtol=0, atol=1e-12)


def test_a_window_hides_what_is_outside_it(tmp_path: Path) -> None:
    # In a one-layer model with a window of 3, the last token depends on itself and the two before it, and no other.
    weights = load(tiny_gguf(tmp_path / "a.gguf", layers=1, metadata={"llama.attention.sliding_window": 3}))
    last = logits(weights, TOKENS)[-1]
    assert np.array_equal(last, logits(weights, [7, 8, 9, 10, 11, *TOKENS[-3:]])[-1])
    assert not np.allclose(last, logits(weights, [*TOKENS[:-3], 11, *TOKENS[-2:]])[-1])


def test_rotary_positions_are_relative(tmp_path: Path) -> None:
    # With a window of one layer, shifting all positions by the same amount changes nothing.
    weights = load(tiny_gguf(tmp_path / "a.gguf", layers=1, metadata={"llama.attention.sliding_window": 3}))
    early, late = logits(weights, TOKENS[-3:])[-1], logits(weights, TOKENS)[-1]
    assert np.allclose(early, late, rtol=0, atol=1e-9)


def test_gguf_factors_are_llama3_scaling(tmp_path: Path) -> None:
    # The converter of llama.cpp writes the Llama 3 scaling as unscaled / scaled frequencies.
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    folder = load(tiny_folder(tmp_path / "f", config={"rope_scaling": scaling}))
    assert folder.config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 32)
    factors = rope_frequencies(replace(folder.config, rope_scaling=None)) / rope_frequencies(folder.config)
    gguf = load(tiny_gguf(tmp_path / "a.gguf", format="F32", extra={"rope_freqs.weight": factors.astype(np.float32)}))
    assert np.allclose(logits(gguf, TOKENS), logits(folder, TOKENS), rtol=0, atol=1e-5)


def test_rms_norm_by_hand() -> None:
    # Mean square of (3, 4) is 12.5.
    x = np.array([[3.0, 4.0]])
    expected = [3 / math.sqrt(12.5) * 2, 4 / math.sqrt(12.5) * -1]
    assert rms_norm(x, np.array([2.0, -1.0]), replace(TINY, norm_eps=1e-300))[0].tolist() == pytest.approx(expected)


def test_rotation_by_hand() -> None:
    # Two pairs, (0, 2) and (1, 3), with frequencies 1 and 0.1; position 0 stays, position 1 turns by 1 and 0.1 radian.
    config = replace(TINY, head_dim=4, rope_theta=100.0)
    x = np.array([[[1.0, 1.0, 0.0, 0.0]], [[1.0, 1.0, 0.0, 0.0]]])
    assert rotate(x, config)[0, 0].tolist() == [1.0, 1.0, 0.0, 0.0]
    expected = [math.cos(1), math.cos(0.1), math.sin(1), math.sin(0.1)]
    assert rotate(x, config)[1, 0].tolist() == pytest.approx(expected)


def test_softmax_by_hand() -> None:
    scores = np.array([[0.0, math.log(3.0), -np.inf], [1000.0, 1000.0, 1000.0]])
    assert softmax(scores)[0].tolist() == pytest.approx([0.25, 0.75, 0.0])
    assert softmax(scores)[1].tolist() == pytest.approx([1 / 3] * 3)
