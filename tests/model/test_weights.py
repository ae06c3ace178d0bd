"""Weights: the same model from any container, checked shapes, identity, and the tokenizer that comes with it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvledger.errors import ModelFileError
from kvledger.model.formats import dequantise
from kvledger.model.weights import Weights, expected_tensors, load
from tests.model.tiny import tiny_arrays, tiny_folder, tiny_gguf, tiny_tokenizer


def arrays_of(weights: Weights) -> dict[str, np.ndarray]:
    return {name: dequantise(weights.tensor(name)) for name, _ in expected_tensors(weights.config)}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "bias", "qk_norm"),
    [("llama", False, False), ("llama", True, False), ("qwen2", True, False), ("qwen3", False, True)],
)
def test_both_containers_hold_the_same_numbers(
    tmp_path: Path, family: str, bias: bool, qk_norm: bool, tied: bool
) -> None:
    written = tiny_arrays(64, 2, 4, 2, 16, 128, 320, bias, qk_norm, tied, 3)
    config = {"attention_bias": True} if bias and family == "llama" else None
    gguf = load(tiny_gguf(tmp_path / "a.gguf", arch=family, format="F32", bias=bias, tied=tied, seed=3))
    folder = load(tiny_folder(tmp_path / "f", family=family, bias=bias, tied=tied, seed=3, config=config))
    for weights in (gguf, folder):
        read = arrays_of(weights)
        assert read.keys() == written.keys()
        for name, array in written.items():
            assert np.array_equal(read[name], np.atleast_2d(array)), name


def test_quantised_query_rows_are_moved_whole(tmp_path: Path) -> None:
    # Rows are quantised one by one, so moving them before or after quantising is the same.
    llama = load(tiny_gguf(tmp_path / "a.gguf", arch="llama", format="Q4_1", head_dim=32))
    qwen = load(tiny_gguf(tmp_path / "b.gguf", arch="qwen3", format="Q4_1", head_dim=32))
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
        assert np.array_equal(
            np.sort(llama.tensor(name).data.view("V40").ravel()), np.sort(llama._tensors[name].data.view("V40").ravel())
        )
        assert not np.array_equal(llama.tensor(name).data, llama._tensors[name].data)
        assert np.array_equal(qwen.tensor(name).data, qwen._tensors[name].data)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_folder_dtypes_and_shards(tmp_path: Path, dtype: str, shards: int) -> None:
    written = tiny_arrays(64, 2, 4, 2, 16, 128, 320, False, False, True, 0)
    weights = load(tiny_folder(tmp_path, dtype=dtype, shards=shards))
    tolerance = {"F32": 0, "F16": 2**-11, "BF16": 2**-8}[dtype]
    for name, array in arrays_of(weights).items():
        assert weights.tensor(name).format.name == dtype
        assert np.allclose(array, np.atleast_2d(written[name]), rtol=tolerance, atol=2**-25), name


def test_vector_and_contains(tmp_path: Path) -> None:
    weights = load(tiny_gguf(tmp_path / "a.gguf"))
    assert weights.vector("output_norm.weight").shape == (64,)
    assert "blk.1.ffn_up.weight" in weights
    assert "output.weight" not in weights


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_down.weight", "output_norm.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    for path in (
        tiny_gguf(tmp_path / "a.gguf", without=(name,)),
        tiny_folder(tmp_path / "f", without=(name,)),
    ):
        with pytest.raises(ModelFileError, match=f"{path} has no tensor {name}: it is not a complete llama model"):
            load(path)


def test_an_untied_head_must_be_there(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, tied=False, without=("output.weight",))
    with pytest.raises(ModelFileError, match=r"no tensor output\.weight"):
        load(folder)


def test_a_tied_head_written_twice_is_one(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, tied=False, config={"tie_word_embeddings": True})
    assert "output.weight" not in load(folder)


@pytest.mark.parametrize(
    "maker",
    [
        {"qk_norm": True},
        {"extra": {"blk.0.attn_output.bias": np.zeros(64, np.float32)}},
        {"extra": {"blk.0.ffn_gate_inp.weight": np.zeros((8, 64), np.float32)}},
    ],
)
def test_a_tensor_that_would_be_ignored_is_refused(tmp_path: Path, maker: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"has the tensor blk\.0\.(attn_k_norm|attn_output|ffn_gate_inp)"):
        load(tiny_gguf(tmp_path / "a.gguf", format="F32", **maker))


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, config={"intermediate_size": 96})
    with pytest.raises(
        ModelFileError, match=r"blk\.0\.ffn_gate\.weight is 128 x 64, but the configuration says 96 x 64"
    ):
        load(folder)


def test_fingerprint_follows_the_numbers_alone(tmp_path: Path) -> None:
    first = load(tiny_gguf(tmp_path / "a.gguf", seed=1)).fingerprint
    renamed = load(tiny_gguf(tmp_path / "b.gguf", seed=1, metadata={"general.name": "another name"})).fingerprint
    assert len(first) == 64
    assert first == renamed
    others = [
        tiny_gguf(tmp_path / "c.gguf", seed=2),
        tiny_gguf(tmp_path / "d.gguf", seed=1, format="Q8_0"),
        tiny_gguf(tmp_path / "e.gguf", seed=1, metadata={"llama.rope.freq_base": 20000.0}),
        tiny_gguf(tmp_path / "f.gguf", seed=1, metadata={"llama.attention.sliding_window": 4}),
    ]
    assert len({first, *(load(path).fingerprint for path in others)}) == 5


def test_one_changed_weight_changes_the_fingerprint(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf", format="F32")
    data = bytearray(path.read_bytes())
    at = data.index(np.float32(load(path).vector("output_norm.weight")[5]).tobytes())
    data[at] ^= 1
    changed = tmp_path / "b.gguf"
    changed.write_bytes(data)
    assert load(path).fingerprint != load(changed).fingerprint


@pytest.mark.parametrize("container", ["gguf", "folder"])
def test_the_tokenizer_is_the_models_own(tmp_path: Path, container: str) -> None:
    path = tiny_gguf(tmp_path / "a.gguf") if container == "gguf" else tiny_folder(tmp_path / "f")
    tokenizer = load(path).tokenizer
    text = "the ledger keeps the cache 猫"
    assert tokenizer.encode(text) == tiny_tokenizer().encode(text).ids
    assert 2 in tokenizer.eos_ids


def test_folders_that_are_not_models(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"a folder without a config\.json: give a GGUF file, or a folder"):
        load(tmp_path)
    tiny_gguf(tmp_path / "some.gguf")
    with pytest.raises(ModelFileError, match=r"give a GGUF file in it, such as some\.gguf"):
        load(tmp_path)
    folder = tiny_folder(tmp_path / "f")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"holds no \*\.safetensors file"):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"config\.json is not valid JSON"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelFileError, match=r"config\.json must hold a JSON object"):
        load(folder)


def test_shards_that_are_not_there(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"names the file model-00002-of-00002\.safetensors, which is not in"):
        load(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../secret.safetensors"}}))
    with pytest.raises(ModelFileError, match=r"names the file \.\./secret\.safetensors, which is not in the folder"):
        load(folder)
    index.write_text("{}")
    with pytest.raises(ModelFileError, match="has no weight_map"):
        load(folder)


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path)
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    with pytest.raises(ModelFileError, match=r"other\.safetensors: the tensor .* is also in another file"):
        load(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("safetensors"), layers=1, hidden=32, ffn=32, head_dim=8)


@pytest.fixture(scope="module")
def good(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def complaint(folder: Path, data: bytes) -> str | None:
    path = folder / "model.safetensors"
    path.unlink()
    path.write_bytes(data)
    try:
        load(folder)
    except ModelFileError as error:
        return str(error)
    return None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fraction=st.floats(0, 1))
def test_safetensors_truncated_anywhere(folder: Path, good: bytes, fraction: float) -> None:
    message = complaint(folder, good[: int(fraction * (len(good) - 1))])
    assert message is not None
    assert "model.safetensors is" in message


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1500), value=st.integers(0, 255))
def test_any_changed_byte_of_a_safetensors_header(folder: Path, good: bytes, at: int, value: int) -> None:
    message = complaint(folder, good[:at] + bytes([value]) + good[at + 1 :])
    assert message is None or (str(folder) in message and "\n" not in message)


def test_unsupported_dtypes_are_named(folder: Path, good: bytes) -> None:
    message = complaint(folder, good.replace(b'"F32"', b'"I32"', 1))
    assert message is not None
    assert "is stored as I32, which is not supported (supported: F32, F16, BF16)" in message
