"""Reading configurations: parameter counts held to published ones, and what is said of files that lack something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvledger.errors import ModelFileError, PlanError
from kvledger.model.gguf_file import read_gguf
from kvledger.plan.catalog import accelerators, catalogued_accelerator, models
from kvledger.plan.layers import Attention, LatentAttention, Recurrent
from kvledger.plan.models import find_model
from tests.model.tiny import tiny_gguf
from tests.plan.shapes import CONFIG, shape


@pytest.mark.parametrize("name", [name for name, entry in models().items() if entry.parameters is not None])
def test_the_formulas_give_the_published_parameter_count(name):
    assert find_model(name).parameters == models()[name].parameters


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        # Totals and active parameters as their makers state them.
        ("gpt-oss-20b", 20.91, 3.61),
        ("gpt-oss-120b", 116.83, 5.13),
        ("deepseek-v3", 671, 37),
        ("kimi-k2", 1026, 32),
        ("jamba-1.5-large", 398, 94),
        ("minimax-text-01", 456, 45.9),
        ("qwen3-235b-a22b", 235, 22),
        ("granite-4.0-h-small", 32, 9),
        ("llama-4-maverick", 400, 17),
        ("mixtral-8x22b", 141, 39),
    ],
)
def test_mixtures_of_experts_have_the_size_their_makers_state(name, billions, active):
    found = find_model(name)
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert found.matmul_parameters / 1e9 == pytest.approx(active, rel=0.06)


def test_the_catalogue_is_as_large_as_promised_and_every_entry_says_where_it_is_from():
    assert len(models()) >= 40
    assert len(accelerators()) >= 25
    for entry in (*models().values(), *accelerators().values()):
        assert entry.source
        assert entry.recorded.startswith("20")
    for each in accelerators().values():
        assert {"bf16", "fp16"} & set(each.flops), each.name
        assert each.memory > 10**9
        assert each.bandwidth > 10**11


def test_a_small_model_counted_by_hand():
    small = shape()
    assert small.parameters == 1352
    assert small.weights_bytes() == 2704
    assert small.weights_bytes("fp8") == 2 * (80 + 80 + 8) + 2 * 592
    assert small.matmul_parameters == 2 * 592 + 80
    assert shape(tie_word_embeddings=True).parameters == 1352 - 80


def test_families_read_their_own_kinds_of_layers():
    kinds = {
        "gemma-3-27b": {(52, 1024), (10, None)},
        "gemma-2-9b": {(21, 4096), (21, None)},
        "gpt-oss-120b": {(18, 128), (18, None)},
        "mistral-7b-v0.1": {(32, 4096)},
        "mistral-7b-v0.3": {(32, None)},
        "llama-4-scout": {(36, 8192), (12, None)},
    }
    for name, expected in kinds.items():
        found: dict[int | None, int] = {}
        for run in find_model(name).layers:
            assert isinstance(run.mixer, Attention)
            found[run.mixer.window] = found.get(run.mixer.window, 0) + run.count
        assert {(count, window) for window, count in found.items()} == expected, name


def test_hybrids_have_few_layers_that_grow():
    for name, growing, constant in (
        ("qwen3-next-80b-a3b", 12, 36),
        ("jamba-1.5-large", 9, 63),
        ("granite-4.0-h-small", 4, 36),
        ("minimax-text-01", 10, 70),
    ):
        layers = find_model(name).layers
        assert sum(run.count for run in layers if isinstance(run.mixer, Attention)) == growing, name
        assert sum(run.count for run in layers if isinstance(run.mixer, Recurrent)) == constant, name


def test_mla_keeps_a_latent_vector_and_a_rotary_key():
    for run in find_model("deepseek-r1").layers:
        assert isinstance(run.mixer, LatentAttention)
        assert run.mixer.elements_per_token == 512 + 64


def test_a_model_is_found_by_its_repository_too():
    assert find_model("Qwen/Qwen3-8B").name == "qwen3-8b"
    assert find_model("LLAMA-3-8B").name == "llama-3-8b"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-3-7b", "llama-3-70b"),
        ("qwen3", "qwen3-8b"),
        ("deepseek_v3", "deepseek-v3"),
        ("meta-llama/mixtral", "mixtral"),
    ],
)
def test_an_unknown_model_gets_near_names(name, near):
    with pytest.raises(PlanError, match="did you mean") as caught:
        find_model(name)
    assert near in str(caught.value)


def test_an_unknown_accelerator_gets_near_names():
    with pytest.raises(PlanError, match="h100-80gb"):
        catalogued_accelerator("h100")
    with pytest.raises(PlanError, match="did you mean h100"):
        catalogued_accelerator("h101")
    with pytest.raises(PlanError, match="not known"):
        catalogued_accelerator("")


def test_a_file_that_is_not_there_is_no_name_of_the_catalogue():
    with pytest.raises(PlanError, match=r"no file model\.gguf"):
        find_model("model.gguf")


@pytest.mark.parametrize(
    "key",
    [
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    ],
)
def test_a_missing_field_is_named(tmp_path: Path, key: str):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({name: value for name, value in CONFIG.items() if name != key}))
    with pytest.raises(ModelFileError, match=f"no {key}"):
        find_model(str(path))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "mamba9"}, "mamba9.*known are.*llama"),
        ({"num_key_value_heads": 3}, "a divisor of the 4 query heads"),
        ({"hidden_size": "8"}, "hidden_size = '8'"),
        ({"hidden_size": float("nan")}, "hidden_size = nan"),
        ({"hidden_size": -1}, "hidden_size = -1"),
        ({"hidden_size": 10**15}, "hidden_size = 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"quantization_config": {"quant_method": "exl2"}}, "exl2"),
        ({"model_type": "qwen3", "num_key_value_heads": None}, "no num_key_value_heads"),
        ({"model_type": "gemma2"}, "no sliding_window"),
        ({"model_type": "deepseek_v3"}, "no kv_lora_rank"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "one word for each of the 2 layers"),
    ],
)
def test_what_cannot_be_used_is_said_by_name(changes, says):
    with pytest.raises(ModelFileError, match=says):
        shape(**changes)


def test_files_that_are_no_configuration(tmp_path: Path):
    for content in ("[1]", "{", "\x00"):
        path = tmp_path / "config.json"
        path.write_text(content)
        with pytest.raises(ModelFileError, match="is not a config"):
            find_model(str(path))
    with pytest.raises(ModelFileError, match="cannot be read"):
        find_model(str(tmp_path / ".."))


def test_a_folder_a_text_config_and_a_quantised_one(tmp_path: Path):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": dict(CONFIG), "vision": {}})
    )
    found = find_model(str(tmp_path))
    assert found.parameters == 1352
    assert "images" in found.notes[0]
    assert shape(quantization_config={"quant_method": "awq", "bits": 4}).weight_dtype == "int4"
    assert shape(quantization_config={"quant_method": "fp8"}).weight_dtype == "fp8"


def test_a_gguf_file_takes_what_its_tensors_take(tmp_path: Path):
    path = tiny_gguf(tmp_path / "tiny.gguf", format="Q8_0")
    found, tensors = find_model(str(path)), read_gguf(path).tensors.values()
    assert found.weights_bytes() == sum(tensor.data.nbytes for tensor in tensors)
    assert found.parameters == sum(tensor.rows * tensor.cols for tensor in tensors)
    assert found.weights_bytes("bf16") == 2 * found.parameters


def test_smollm2_itself_is_its_entry_in_the_catalogue(smollm2_path: Path):
    found, known = find_model(str(smollm2_path)), find_model("smollm2-135m")
    assert found.layers == known.layers
    assert found.parameters == known.parameters
    assert found.weights_bytes() < smollm2_path.stat().st_size
