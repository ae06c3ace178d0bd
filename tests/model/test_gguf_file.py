"""The GGUF reader: equal to the library's on good files, one clear error on every bad one."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvledger.errors import ModelFileError
from kvledger.model.gguf_file import read_gguf
from kvledger.model.weights import load
from tests.model.tiny import tiny_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", layers=1, hidden=32, ffn=32, head_dim=8)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], Path]:
    path = tmp_path_factory.mktemp("damaged") / "bad.gguf"

    def write(data: bytes) -> Path:
        path.unlink(missing_ok=True)  # a new file each time: an old one may still be mapped
        path.write_bytes(data)
        return path

    return write


def complaint(path: Path) -> str | None:
    try:
        load(path)
    except ModelFileError as error:
        return str(error)
    return None


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q4_1", "Q8_0"])
def test_equals_the_library(tmp_path: Path, format: str) -> None:
    path = tiny_gguf(
        tmp_path / "model.gguf",
        format=format,
        metadata={
            "some.flags": [True, False],
            "some.numbers": [1.5, -2.0],
            "some.ints": [-5, 6],
            "some.text": "naïve 猫",
        },
    )
    ours, library = read_gguf(path), GGUFReader(path)
    fields = {name: field.contents() for name, field in library.fields.items() if not name.startswith("GGUF.")}
    assert dict(ours.metadata) == fields
    assert [tensor.name for tensor in library.tensors] == list(ours.tensors)
    for tensor in library.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.format.name == tensor.tensor_type.name
        assert (mine.cols, mine.rows) == (tensor.shape[0], int(np.prod(tensor.shape[1:])))
        assert mine.data.tobytes() == tensor.data.tobytes()


def test_tensors_are_views_of_the_mapped_file(model: Path) -> None:
    data = read_gguf(model).tensors["token_embd.weight"].data
    assert not data.flags.owndata
    assert not data.flags.writeable


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fraction=st.floats(0, 1))
def test_truncated_anywhere(model: Path, damaged: Callable[[bytes], Path], fraction: float) -> None:
    data = model.read_bytes()
    padding = len(data) - len(data.rstrip(b"\0"))  # zeros at the very end may be the padding after the last tensor
    size = int(fraction * (len(data) - padding - 1))
    path = damaged(data[:size])
    with pytest.raises(ModelFileError, match=r"bad\.gguf .*(empty|not a GGUF|truncated)"):
        load(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), value=st.integers(0, 255))
def test_any_changed_byte_of_the_header_gives_a_model_or_one_clear_error(
    model: Path, damaged: Callable[[bytes], Path], at: int, value: int
) -> None:
    data = bytearray(model.read_bytes())
    data[at] = value
    message = complaint(damaged(bytes(data)))
    assert message is None or ("bad.gguf" in message and "\n" not in message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"PK\x03\x04" + data[4:], "is not a GGUF file"),
        (lambda data: b"", "is empty"),
        (lambda data: data[:4] + (1).to_bytes(4, "little") + data[8:], "version 1"),
        (lambda data: data[:4] + (3).to_bytes(4, "big") + data[8:], "big-endian"),
        (lambda data: data[:8] + (2**63).to_bytes(8, "little") + data[16:], "damaged|truncated"),
        (lambda data: data[:16] + (2**63).to_bytes(8, "little") + data[24:], "damaged|truncated"),
        (lambda data: data.replace(b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"), "attn_v.weight occurs twice"),
        (lambda data: data.replace(b"llama.block_count", b"llama.\xff\xfe\xfdck_count"), "not UTF-8"),
    ],
)
def test_damage_is_named(
    model: Path, damaged: Callable[[bytes], Path], change: Callable[[bytes], bytes], message: str
) -> None:
    path = damaged(change(model.read_bytes()))
    with pytest.raises(ModelFileError, match=message) as error:
        load(path)
    assert str(path) in str(error.value)


def test_an_unsupported_quantisation_is_named(tmp_path: Path, damaged: Callable[[bytes], Path]) -> None:
    data = tiny_gguf(tmp_path / "q.gguf", layers=1, format="Q8_0", hidden=32, ffn=32, head_dim=8).read_bytes()
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 16  # after the number of dimensions and two sizes
    for kind, text in ((23, "IQ4_XS"), (250, "unknown GGML type 250")):
        path = damaged(data[:at] + kind.to_bytes(4, "little") + data[at + 4 :])
        with pytest.raises(ModelFileError, match=rf"ffn_up\.weight is stored as .*{text}.*supported: F32, F16"):
            load(path)


def test_a_file_that_is_not_there_or_not_readable(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no\.gguf cannot be read: No such file"):
        load(tmp_path / "no.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match="not a regular file"):
        load(tmp_path / "model.gguf")
