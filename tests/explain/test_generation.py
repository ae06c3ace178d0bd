"""Both ways of generating, on tiny models and on the real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kvledger.clock import ManualClock, SystemClock
from kvledger.errors import ExplainError
from kvledger.explain.generation import generate, step_multiply_adds, total_multiply_adds
from kvledger.explain.generation_page import generation_page, generation_record
from kvledger.model import reference
from kvledger.model.kv import bytes_per_block
from kvledger.model.llama import LlamaModel
from kvledger.model.weights import load
from kvledger.page.html import render
from tests.model.tiny import tiny_gguf


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory):
    weights = load(tiny_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", format="F32"))
    return weights, LlamaModel(weights, mode="exact", threads=1)


def run(loaded, prompt=(5, 6, 7), **options):
    weights, model = loaded
    given = {"steps": 4, "stop": frozenset(), "layer": None, "clock": SystemClock(), **options}
    return generate(weights, model, prompt, **given)


def test_with_and_without_the_cache_are_the_same_bit_for_bit(loaded):
    found = run(loaded, steps=20)
    assert all(step.is_same for step in found.steps)
    assert len(found.tokens) == 23


def test_what_is_computed_read_and_kept(loaded):
    found = run(loaded)
    per_token = bytes_per_block(found.config, "f16") // 16
    assert found.kv_bytes_per_token == per_token
    assert [step.with_cache.tokens for step in found.steps] == [3, 1, 1, 1]
    assert [step.without_cache.tokens for step in found.steps] == [3, 4, 5, 6]
    assert [step.with_cache.kv_read for step in found.steps] == [0, 3 * per_token, 4 * per_token, 5 * per_token]
    assert [step.with_cache.kv_written for step in found.steps] == [3 * per_token, *[per_token] * 3]
    assert found.steps[0].with_cache.multiply_adds == found.steps[0].without_cache.multiply_adds


def test_multiply_adds_by_hand(loaded):
    """Of a layer: q and o hidden x q each, k and v hidden x kv each, three of the feed-forward part; attention two
    products of q per token seen."""
    config = loaded[1].config
    matrices = config.hidden_size * (2 * config.q_size + 2 * config.kv_size + 3 * config.ffn_size)
    head = config.vocab_size * config.hidden_size
    attended = 2 * config.q_size * 8
    assert step_multiply_adds(config, 7, 8) == config.num_layers * (matrices + attended) + head
    assert step_multiply_adds(config, 0, 2) == config.num_layers * (2 * matrices + 2 * config.q_size * 3) + head


def test_totals_are_the_steps_added_up(loaded):
    found = run(loaded)
    with_cache = sum(step.with_cache.multiply_adds for step in found.steps)
    without = sum(step.without_cache.multiply_adds for step in found.steps)
    assert total_multiply_adds(found.config, 3, 7) == (with_cache, without)


def test_the_reference_chooses_the_same_and_its_attention_sums_to_one(loaded):
    found = run(loaded, layer=0)
    assert found.agreed == 4
    assert found.attention is not None
    assert found.attention.shape == (found.config.num_heads, 6, 6)
    np.testing.assert_allclose(found.attention.sum(axis=-1), 1)
    assert np.all(np.triu(found.attention[0], 1) == 0)


def test_appended_lengths_are_those_of_the_references_keys_and_values(loaded):
    weights, _ = loaded
    found = run(loaded, prompt=(5,), steps=1)
    x = weights.tensor("token_embd.weight").data.view(np.float32)[5].astype(np.float64)
    normed = reference.rms_norm(x, weights.vector("blk.0.attn_norm.weight").astype(np.float64), found.config)
    for name, length in (("k", found.appended[0].key_norm), ("v", found.appended[0].value_norm)):
        matrix = weights.tensor(f"blk.0.attn_{name}.weight").data.view(np.float32).astype(np.float64)
        assert length == pytest.approx(np.linalg.norm(matrix @ normed), rel=2e-3)  # stored in 16 bits
    assert sum(each.bytes for each in found.appended) == found.kv_bytes_per_token


def test_it_stops_at_a_token_that_ends_the_turn(loaded):
    chosen = run(loaded).steps[0].token
    assert len(run(loaded, stop=frozenset({chosen})).steps) == 1


def test_time_is_taken_from_the_clock(loaded):
    assert all(step.with_cache.seconds == 0 for step in run(loaded, clock=ManualClock()).steps)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompt": ()}, "no tokens"),
        ({"steps": 0}, "--steps is 0"),
        ({"layer": 99}, "layers 0 to"),
        ({"layer": -1}, "layers 0 to"),
        ({"steps": 10**6}, "do not fit"),
    ],
)
def test_bad_input(loaded, options, says):
    with pytest.raises(ExplainError, match=says):
        run(loaded, **options)


@pytest.mark.slow
def test_the_real_model(smollm2_path: Path):
    weights = load(smollm2_path)
    tokenizer = weights.tokenizer
    found = run((weights, LlamaModel(weights)), prompt=tokenizer.encode("The cat sat on the"), steps=6)
    assert all(step.is_same for step in found.steps)
    assert found.kv_bytes_per_token == 23_040 == 30 * 2 * 3 * 64 * 2
    record = json.loads(json.dumps(generation_record(found, tokenizer)))
    assert len(record["attention"]["heads"]) == 9
    page = render(generation_page(found, tokenizer, "smollm2"))
    assert page.count("<svg") == 2 + 9
    assert "equal bit for bit in 6 of 6 steps" in page
