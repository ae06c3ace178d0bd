"""Hugging Face model folders: `config.json` and one or more safetensors files, mapped into memory.

A safetensors file is eight bytes of header length, a JSON header that gives each tensor's dtype, shape and byte range,
and the bytes. The header is read here, and not by the `safetensors` library, because that copies every tensor.
"""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvledger.errors import ModelFileError
from kvledger.model.config import ModelConfig, config_from_json
from kvledger.model.formats import Format, Tensor
from kvledger.model.mapped import map_file

_FORMATS = {"F32": Format.F32, "F16": Format.F16, "BF16": Format.BF16}
_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")


def read_folder(folder: Path) -> tuple[ModelConfig, Mapping[str, Tensor]]:
    """Open the model in `folder`; return its configuration and its tensors under their GGUF names.

    Raises `ModelFileError` naming the file and what is wrong with it.
    """
    config_path = folder / "config.json"
    if not config_path.is_file():
        raise ModelFileError(f"{folder} is a folder without a config.json: {_advice(folder)}.")
    config = config_from_json(config_path, read_json(config_path))
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        for name, tensor in _read_tensors(path):
            if name in tensors:
                raise ModelFileError(f"{path}: the tensor {name} is also in another file of the folder.")
            tensors[name] = tensor
    if config.tied_head:
        tensors.pop("output.weight", None)  # some savers write the shared matrix twice
    return config, tensors


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from `path`; raises `ModelFileError`."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} must hold a JSON object.")
    return value


def _advice(folder: Path) -> str:
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    if ggufs:
        return f"give a GGUF file in it, such as {ggufs[0]}"
    return "give a GGUF file, or a folder that holds config.json and *.safetensors"


def _weight_files(folder: Path) -> list[Path]:
    index_path = folder / "model.safetensors.index.json"
    if not index_path.exists():
        paths = sorted(folder.glob("*.safetensors"))
        if not paths:
            raise ModelFileError(
                f"{folder} holds no *.safetensors file: fetch the model again, or use a GGUF file of it."
            )
        return paths
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{index_path} has no weight_map.")
    shards = sorted({str(shard) for shard in weight_map.values()})
    for shard in shards:
        if shard != Path(shard).name or not (folder / shard).is_file():
            raise ModelFileError(f"{index_path} names the file {shard}, which is not in the folder: fetch it as well.")
    return [folder / shard for shard in shards]


def _read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    data = map_file(path)
    header_size = int.from_bytes(data[:8], "little")
    start = 8 + header_size
    if start > len(data):
        raise ModelFileError(
            f"{path} is truncated or not a safetensors file: its header would end at byte {start} and the file has"
            f" {len(data)}."
        )
    try:
        header = msgspec.json.decode(data[8:start], type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in header.items()}
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ModelFileError(f"{path} is not a safetensors file: its header cannot be understood ({error}).") from None
    for name, entry in entries.items():
        if not name.endswith(".rotary_emb.inv_freq"):  # a constant that old savers wrote as well
            yield _gguf_name(name), _tensor(path, data, start, name, entry)


class _Entry(msgspec.Struct):
    """One tensor in the header of a safetensors file."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _gguf_name(name: str) -> str:
    """Translate a Hugging Face tensor name; one that has no counterpart is kept, for `Weights` to refuse."""
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] in _LAYER_NAMES:
        return f"blk.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
    return _NAMES.get(name, name)


def _tensor(path: Path, data: mmap.mmap, start: int, name: str, entry: _Entry) -> Tensor:
    format = _FORMATS.get(entry.dtype)
    if format is None:
        raise ModelFileError(
            f"{path}: the tensor {name} is stored as {entry.dtype}, which is not supported"
            f" (supported: {', '.join(_FORMATS)})."
        )
    if len(entry.shape) not in (1, 2) or min(entry.shape) <= 0:
        raise ModelFileError(f"{path}: the tensor {name} has the shape {entry.shape}: not a vector or a matrix.")
    *outer, cols = entry.shape
    rows = outer[0] if outer else 1
    begin, end = entry.data_offsets
    row_bytes = format.row_bytes(cols)
    if begin < 0 or end - begin != rows * row_bytes:
        raise ModelFileError(f"{path} is damaged: the bytes of the tensor {name} do not fit its shape {entry.shape}.")
    if start + end > len(data):
        raise ModelFileError(
            f"{path} is truncated: the tensor {name} ends at byte {start + end} and the file has {len(data)}."
            " Fetch the file again."
        )
    blocks = np.frombuffer(data, np.uint8, end - begin, start + begin).reshape(rows, row_bytes)
    return Tensor(_gguf_name(name), format, rows, cols, blocks)
