"""From what a person names to a model's shape: the catalogue, a `config.json`, or a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvledger.errors import ModelFileError, PlanError
from kvledger.plan.catalog import catalogued_model
from kvledger.plan.dtypes import WEIGHT_BITS, weight_dtype
from kvledger.plan.families import FAMILIES, TIED, layers_of
from kvledger.plan.fields import Fields
from kvledger.plan.shape import ModelShape

_MAX_CONFIG = 10_000_000  # bytes; real ones have a few thousand


def find_model(name: str) -> ModelShape:
    """The shape of the model `name`: a path (a `config.json`, a folder with one, a `.gguf`) or a name in the catalogue.

    Raises `PlanError` with near names for an unknown one, `ModelFileError` naming what a file lacks.
    """
    path = Path(name)
    if name and path.exists():
        if path.is_dir():
            path = path / "config.json"
        return _from_gguf(path) if path.suffix == ".gguf" else from_config(str(path), _read_json(path))
    if path.suffix in (".gguf", ".json"):
        raise PlanError(f"There is no file {name}.")
    entry = catalogued_model(name)
    shape = from_config(f"the catalogue's entry {entry.name}", entry.config)
    return replace(shape, name=entry.name, source=f"{entry.source}, recorded {entry.recorded}")


def from_config(source: str, values: Mapping[str, Any]) -> ModelShape:
    """The shape that the fields of a Hugging Face configuration describe. `source` is what errors call them."""
    notes: list[str] = []
    family = values.get("model_type")
    inner = values.get("text_config")
    if isinstance(inner, dict):
        notes.append("Only the text part is counted: weights for images and sound come on top.")
        values = {**{key: value for key, value in values.items() if key != "text_config"}, **inner}
        family = inner.get("model_type", family)
    if family is None:
        family = "llama"
        notes.append("The configuration names no model_type: its layers are taken to be a Llama's.")
    if family not in FAMILIES:
        raise ModelFileError(
            f"{source} has the model_type {family!r}, whose layers are not known here: known are"
            f" {', '.join(sorted(FAMILIES))}."
        )
    fields = Fields(source, values)
    layers = layers_of(family, fields)
    hidden, vocab = fields.size("hidden_size"), fields.size("vocab_size")
    is_tied = fields.flag("tie_word_embeddings", default=family in TIED)
    return ModelShape(
        name=source,
        source=source,
        hidden_size=hidden,
        vocab_size=vocab,
        context_length=fields.size("max_position_embeddings"),
        layers=tuple(layers),
        embedding_parameters=vocab * hidden,
        head_parameters=0 if is_tied else vocab * hidden,
        weight_dtype=_published_dtype(fields),
        notes=tuple(notes),
    )


def _published_dtype(fields: Fields) -> str:
    """How the weights are stored: what `quantization_config` says, else `dtype`, else 16 bits."""
    quantised = fields.get("quantization_config")
    if isinstance(quantised, dict):
        method, bits = quantised.get("quant_method"), quantised.get("bits")
        if method in WEIGHT_BITS:
            return str(method)
        if method in ("gptq", "awq") and f"int{bits or 4}" in WEIGHT_BITS:
            return f"int{bits or 4}"
        raise ModelFileError(
            f"{fields.source}: what weights quantised with {method!r} take is not known here: use the model's GGUF"
            " file, or remove quantization_config and give --weight-dtype."
        )
    named = fields.get("dtype") or fields.get("torch_dtype") or "bf16"
    if not isinstance(named, str):
        raise fields.missing("dtype", "the name of a data type")
    return weight_dtype(named)


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise ModelFileError(f"{path} is too large for a configuration: give a config.json or a .gguf file.")
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not a config.json: it does not hold valid JSON.") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{path} is not a config.json: an object is needed.")
    return values


# -- GGUF ---------------------------------------------------------------------------------------------------------

_GGUF_FAMILIES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "granite": "granite",
    "olmo2": "olmo2",
    "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v3",
}
_GGUF_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_count": "n_shared_experts",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.q_lora_rank": "q_lora_rank",
    "rope.dimension_count": "qk_rope_head_dim",
}


def _from_gguf(path: Path) -> ModelShape:
    """The metadata of a GGUF file in the words of a configuration; weights take what its tensors take."""
    from kvledger.model.gguf_file import read_gguf  # noqa: PLC0415 (NumPy)

    file = read_gguf(path)
    architecture = file.metadata.get("general.architecture")
    family = _GGUF_FAMILIES.get(architecture) if isinstance(architecture, str) else None
    if family is None:
        raise ModelFileError(
            f"{path} has the architecture {architecture!r}, whose layers are not known here: known are"
            f" {', '.join(_GGUF_FAMILIES)}."
        )
    values: dict[str, Any] = {
        key: value
        for name, key in _GGUF_KEYS.items()
        if (value := file.metadata.get(f"{architecture}.{name}")) is not None
    }
    embedding = file.tensors.get("token_embd.weight")
    if embedding is not None:
        values["vocab_size"] = embedding.rows
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    values["model_type"] = family
    if family == "llama" and values.get("num_local_experts"):
        values["model_type"] = "mixtral"
    if family == "llama" and values.get("sliding_window"):
        values["model_type"] = "mistral"
    if family == "deepseek_v3":
        _spell_out_latent(file.metadata, values)
    values["num_experts"] = values["n_routed_experts"] = values.get("num_local_experts")
    shape = from_config(str(path), values)
    sizes = [tensor.data.nbytes for tensor in file.tensors.values()]
    return replace(shape, name=path.stem, file_bytes=sum(sizes))


def _spell_out_latent(metadata: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Head sizes of latent attention: newer files name those of the heads `_mla`, older ones do not."""
    prefix = "deepseek2.attention."
    key = metadata.get(f"{prefix}key_length_mla", metadata.get(f"{prefix}key_length"))
    value = metadata.get(f"{prefix}value_length_mla", metadata.get(f"{prefix}value_length"))
    rope = values.get("qk_rope_head_dim")
    if isinstance(key, int) and isinstance(rope, int):
        values["qk_nope_head_dim"] = key - rope
    if isinstance(value, int):
        values["v_head_dim"] = value
