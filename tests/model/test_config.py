"""Configurations: what the two kinds of file say, and every value that is refused by name."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvledger.errors import ModelFileError
from kvledger.model.config import ModelConfig, RopeScaling, rope_frequencies
from kvledger.model.weights import load
from tests.model.tiny import tiny_folder, tiny_gguf

TINY = ModelConfig(
    architecture="llama",
    vocab_size=320,
    hidden_size=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_size=128,
    norm_eps=float(np.float32(1e-5)),
    rope_theta=10000.0,
    context_length=512,
    tied_head=True,
)


def test_gguf(tmp_path: Path) -> None:
    config = load(tiny_gguf(tmp_path / "a.gguf")).config
    assert config == TINY
    assert (config.q_size, config.kv_size) == (64, 32)


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        ({"arch": "qwen2"}, {"architecture": "qwen2", "qkv_bias": True}),
        ({"arch": "qwen3", "head_dim": 32}, {"architecture": "qwen3", "qk_norm": True, "head_dim": 32}),
        ({"bias": True}, {"qkv_bias": True}),
        ({"tied": False}, {"tied_head": False}),
        ({"metadata": {"llama.attention.sliding_window": 8}}, {"sliding_window": 8}),
        ({"metadata": {"llama.attention.sliding_window": 0}}, {}),
        ({"metadata": {"llama.attention.key_length": None, "llama.attention.value_length": None}}, {}),
        ({"metadata": {"llama.rope.freq_base": None}}, {}),
        ({"kv_heads": 4, "metadata": {"llama.attention.head_count_kv": None}}, {"num_kv_heads": 4}),
        (
            {"metadata": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
            {"rope_scaling": RopeScaling("linear", 4.0)},
        ),
        (
            {"extra": {"rope_freqs.weight": np.arange(1, 9, dtype=np.float32)}},
            {"rope_scaling": RopeScaling("factors", factors=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0))},
        ),
    ],
)
def test_gguf_variants(tmp_path: Path, maker: dict[str, Any], expected: dict[str, Any]) -> None:
    assert load(tiny_gguf(tmp_path / "a.gguf", **maker)).config == replace(TINY, **expected)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma3"}, "architecture 'gemma3': supported are llama, qwen2, qwen3"),
        ({"general.architecture": None}, "names no architecture"),
        ({"split.count": 3}, "one of 3 parts of a model"),
        ({"llama.block_count": None}, "no llama.block_count"),
        ({"llama.block_count": 0}, "llama.block_count = 0: a whole number above zero"),
        ({"llama.block_count": "two"}, "llama.block_count = 'two'"),
        ({"llama.block_count": True}, "llama.block_count = True"),
        ({"llama.block_count": 3}, "no tensor blk.2.attn_norm.weight"),
        ({"llama.block_count": 1}, "has the tensor blk.1.attn_k.weight"),
        ({"llama.block_count": 4_000_000_000}, "no tensor blk.2.attn_norm.weight"),
        ({"llama.embedding_length": 96}, r"token_embd.weight is 320 x 64, but the configuration says 320 x 96"),
        ({"llama.attention.head_count": [4, 2]}, r"llama.attention.head_count = \[4, 2\]"),
        ({"llama.attention.head_count_kv": 3}, "llama.attention.head_count_kv = 3: a divisor of the 4 query heads"),
        ({"llama.attention.key_length": 15}, "an even head size, not 15,"),
        ({"llama.attention.value_length": 32}, "llama.attention.value_length = 32: 16 "),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count = 8: 16 "),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "no llama.attention.layer_norm_rms_epsilon"),
        ({"llama.attention.layer_norm_rms_epsilon": math.nan}, "layer_norm_rms_epsilon = nan"),
        ({"llama.rope.freq_base": math.inf}, "llama.rope.freq_base = inf"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type = 'yarn': none or linear"),
        ({"llama.rope.scaling.type": "linear"}, "no llama.rope.scaling.factor"),
        ({"llama.expert_count": 8}, "llama.expert_count = 8"),
        ({"llama.logit_scale": 0.5}, "llama.logit_scale = 0.5"),
        ({"tokenizer.ggml.tokens": [str(i) for i in range(321)]}, "names 321 tokens, but token_embd.weight has 320"),
    ],
)
def test_gguf_refusals(tmp_path: Path, metadata: dict[str, Any], message: str) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", metadata=metadata)
    with pytest.raises(ModelFileError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("factors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [math.nan]])
def test_gguf_refuses_bad_rope_factors(tmp_path: Path, factors: list[float]) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", extra={"rope_freqs.weight": np.array(factors, np.float32)})
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight must hold 8 factors"):
        load(path)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        ({}, {}),
        ({"family": "mistral", "config": {"sliding_window": 8}}, {"architecture": "mistral", "sliding_window": 8}),
        ({"family": "mistral", "config": {"sliding_window": None}}, {"architecture": "mistral"}),
        ({"family": "qwen2"}, {"architecture": "qwen2", "qkv_bias": True}),
        (
            {"family": "qwen2", "config": {"sliding_window": 8, "use_sliding_window": False}},
            {"architecture": "qwen2", "qkv_bias": True},
        ),
        (
            {
                "family": "qwen2",
                "config": {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0},
            },
            {"architecture": "qwen2", "qkv_bias": True, "sliding_window": 8},
        ),
        ({"family": "qwen3", "head_dim": 32}, {"architecture": "qwen3", "qk_norm": True, "head_dim": 32}),
        ({"config": {"head_dim": None}}, {}),
        ({"config": {"rope_theta": None}}, {}),
        ({"config": {"rope_theta": 5e5, "rope_scaling": LLAMA3}}, {"rope_theta": 5e5, "rope_scaling": "llama3"}),
        ({"config": {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}}}, {"rope_theta": 5e5, "rope_scaling": "llama3"}),
        ({"config": {"rope_scaling": {"type": "linear", "factor": 2}}}, {"rope_scaling": RopeScaling("linear", 2.0)}),
        ({"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}}, {"rope_theta": 1e6}),
    ],
)
def test_folder_variants(tmp_path: Path, maker: dict[str, Any], expected: dict[str, Any]) -> None:
    if expected.get("rope_scaling") == "llama3":
        expected = expected | {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 64)}
    assert load(tiny_folder(tmp_path, **maker)).config == replace(TINY, **({"norm_eps": 1e-5} | expected))


@pytest.mark.parametrize(
    ("family", "config", "message"),
    [
        ("llama", {"model_type": "gpt2"}, "architecture 'gpt2': supported are llama, mistral, qwen2, qwen3"),
        ("llama", {"model_type": None}, "names no architecture"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantised with awq"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rope_type = 'yarn': rope scaling of the kind"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4}}, "type = 'dynamic'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "no factor"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling = 'linear': an object"),
        ("llama", {"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "a number above low_freq_factor = 1.0"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes': true or false"),
        (
            "llama",
            {"head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 1},
            "64 does not divide into 3 heads",
        ),
        ("llama", {"rms_norm_eps": -1.0}, "rms_norm_eps = -1.0"),
        ("llama", {"attention_bias": True}, "no tensor blk.0.attn_q.bias"),
        ("mistral", {"num_key_value_heads": None}, "no num_key_value_heads"),
        ("qwen3", {"head_dim": None}, "no head_dim"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
            "max_window_layers = 1: 0",
        ),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8}, "no max_window_layers"),
    ],
)
def test_folder_refusals(tmp_path: Path, family: str, config: dict[str, Any], message: str) -> None:
    folder = tiny_folder(tmp_path, family=family, config=config)
    with pytest.raises(ModelFileError, match=message) as error:
        load(folder)
    assert str(folder) in str(error.value)


def test_rope_frequencies_by_hand() -> None:
    config = replace(TINY, head_dim=4, rope_theta=100.0)
    assert rope_frequencies(config).tolist() == pytest.approx([1.0, 0.1])
    linear = replace(config, rope_scaling=RopeScaling("linear", 4.0))
    assert rope_frequencies(linear).tolist() == pytest.approx([0.25, 0.025])
    factors = replace(config, rope_scaling=RopeScaling("factors", factors=(1.0, 8.0)))
    assert rope_frequencies(factors).tolist() == pytest.approx([1.0, 0.0125])


def test_llama3_scaling_keeps_short_waves_and_stretches_long_ones() -> None:
    # One turn of frequency f takes 2 pi / f positions: with an original context of 100 and theta = 10^4, the four
    # frequencies 1, 0.1, 0.01, 0.001 make 15.9, 1.59, 0.159 and 0.0159 turns.
    config = replace(TINY, head_dim=8, rope_theta=1e4, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 100))
    kept = (100 * 0.1 / (2 * math.pi) - 1.0) / 3.0
    expected = [1.0, kept * 0.1 + (1 - kept) * 0.1 / 8, 0.01 / 8, 0.001 / 8]
    assert rope_frequencies(config).tolist() == pytest.approx(expected, rel=1e-14)
