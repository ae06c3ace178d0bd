"""The shape of a model: everything a forward pass must know besides the weights, and how files spell it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import ModelFileError
from kvledger.model.formats import Tensor, dequantise

GGUF_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral and SmolLM2 files are "llama" as well
HF_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    `kind` is "llama3" (Llama 3 frequency bands), "linear" (all divided by `factor`) or "factors" (each divided by its
    own entry of `factors`, [head_dim / 2], which is how GGUF files store the Llama 3 scaling).
    """

    kind: str
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions and switches of a Llama-family model. Sizes count elements; `rope_theta` is the rotary base.

    With a `sliding_window` of w, a token sees itself and the w - 1 tokens before it.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    norm_eps: float
    rope_theta: float
    context_length: int
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_head: bool = False
    sliding_window: int | None = None

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim


def rope_frequencies(config: ModelConfig) -> NDArray[np.float64]:
    """Return the rotary frequencies in radians per position, [head_dim / 2], scaling applied.

    Pair i turns by theta^(-2i / head_dim) (Su et al., RoFormer). The Llama 3 scaling keeps frequencies whose wavelength
    is short against the original context, divides those with long ones by `factor`, and blends linearly in between.
    """
    frequencies: NDArray[np.float64] = config.rope_theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "factors":
        return frequencies / np.array(scaling.factors, dtype=np.float64)
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    assert scaling.kind == "llama3"
    turns = scaling.original_context * frequencies / (2 * math.pi)  # full turns within the original context
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = np.clip(kept, 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def config_from_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ModelConfig:
    """Read the configuration of the GGUF file at `path`; raises `ModelFileError` naming what is missing or unknown."""
    architecture = metadata.get("general.architecture")
    if architecture not in GGUF_ARCHITECTURES:
        raise _unknown_architecture(path, architecture, GGUF_ARCHITECTURES)
    num_parts = metadata.get("split.count", 1)
    if num_parts not in (0, 1):
        raise ModelFileError(f"{path} is one of {num_parts} parts of a model: join them with llama-gguf-split --merge.")
    fields = _Fields(path, metadata, f"{architecture}.")
    hidden_size, num_heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = _head_dim(fields, "attention.key_length", hidden_size, num_heads)
    fields.require("attention.value_length", head_dim)
    fields.require("rope.dimension_count", head_dim)
    fields.require("rope.scale_linear", 1.0)
    for key in ("expert_count", "attention.scale", "logit_scale", "residual_scale", "embedding_scale"):
        fields.require(key, 0)  # zero stands for "not used"
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{path} has no tensor token_embd.weight: it is not a complete {architecture} model.")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > embedding.rows:
        raise ModelFileError(f"{path} names {len(tokens)} tokens, but token_embd.weight has {embedding.rows} rows.")
    return ModelConfig(
        architecture=architecture,
        vocab_size=embedding.rows,
        hidden_size=hidden_size,
        num_layers=fields.size("block_count"),
        num_heads=num_heads,
        num_kv_heads=_kv_heads(fields, "attention.head_count_kv", num_heads, default=num_heads),
        head_dim=head_dim,
        ffn_size=fields.size("feed_forward_length"),
        norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number("rope.freq_base", default=10000.0),
        context_length=fields.size("context_length"),
        rope_scaling=_gguf_rope_scaling(fields, tensors.get("rope_freqs.weight"), head_dim),
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in tensors,
        qk_norm=architecture == "qwen3",
        tied_head="output.weight" not in tensors,
        sliding_window=fields.optional_size("attention.sliding_window"),
    )


def config_from_json(path: Path, values: Mapping[str, Any]) -> ModelConfig:
    """Read the configuration in a Hugging Face `config.json`; raises `ModelFileError` naming what is wrong.

    Absent keys take the defaults that the `transformers` configuration class of the family documents.
    """
    architecture = values.get("model_type")
    if architecture not in HF_ARCHITECTURES:
        raise _unknown_architecture(path, architecture, HF_ARCHITECTURES)
    fields = _Fields(path, values)
    if "quantization_config" in values:
        method = fields.table("quantization_config").get("quant_method")
        raise ModelFileError(f"{path}: weights quantised with {method} cannot be read: use a GGUF file of this model.")
    fields.require("hidden_act", "silu")
    fields.require("partial_rotary_factor", 1.0)
    if architecture == "qwen3" and fields.get("head_dim") is None:
        raise fields.wrong("head_dim", "the head size of a qwen3 model")
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    rope = fields.table("rope_parameters") or fields.table("rope_scaling")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        num_layers=fields.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=_kv_heads(
            fields, "num_key_value_heads", num_heads, default=num_heads if architecture == "llama" else None
        ),
        head_dim=_head_dim(fields, "head_dim", hidden_size, num_heads),
        ffn_size=fields.size("intermediate_size"),
        norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_Fields(path, rope).number("rope_theta", default=fields.number("rope_theta", default=10000.0)),
        context_length=fields.size("max_position_embeddings"),
        rope_scaling=_hf_rope_scaling(path, rope),
        qkv_bias=architecture == "qwen2" or fields.flag("attention_bias"),
        qk_norm=architecture == "qwen3",
        tied_head=fields.flag("tie_word_embeddings"),
        sliding_window=_hf_sliding_window(fields, architecture),
    )


class _Fields:
    """Values by key, read with a type; a wrong one is an error that names the file and the key."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        self.path = path
        self.values = values
        self.prefix = prefix

    def get(self, key: str) -> Any:
        return self.values.get(self.prefix + key)

    def wrong(self, key: str, wanted: str) -> ModelFileError:
        value = self.get(key)
        found = f"no {self.prefix}{key}" if value is None else f"{self.prefix}{key} = {value!r}"
        return ModelFileError(f"{self.path} has {found}: {wanted} is needed.")

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or value <= 0:
            raise self.wrong(key, "a whole number above zero")
        return value

    def optional_size(self, key: str) -> int | None:
        return None if self.get(key) in (None, 0) else self.size(key)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.wrong(key, "a number above zero")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return bool(value)

    def table(self, key: str) -> Mapping[str, Any]:
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value or {}

    def require(self, key: str, wanted: Any) -> None:
        """Refuse a value that would change the computation in a way nobody has written."""
        if self.get(key) not in (None, wanted):
            raise self.wrong(key, f"{wanted!r} (the only value supported)")


def _unknown_architecture(path: Path, found: object, known: tuple[str, ...]) -> ModelFileError:
    what = "names no architecture" if found is None else f"has the architecture {found!r}"
    return ModelFileError(f"{path} {what}: supported are {', '.join(known)}.")


def _head_dim(fields: _Fields, key: str, hidden_size: int, num_heads: int) -> int:
    if fields.get(key) is None and hidden_size % num_heads:
        raise fields.wrong(key, f"a head size ({hidden_size} does not divide into {num_heads} heads)")
    head_dim = fields.size(key, default=hidden_size // num_heads)
    if head_dim % 2:
        raise fields.wrong(key, f"an even head size, not {head_dim},")
    return head_dim


def _kv_heads(fields: _Fields, key: str, num_heads: int, *, default: int | None) -> int:
    num_kv_heads = fields.size(key, default)
    if num_heads % num_kv_heads:
        raise fields.wrong(key, f"a divisor of the {num_heads} query heads")
    return num_kv_heads


def _gguf_rope_scaling(fields: _Fields, rope_freqs: Tensor | None, head_dim: int) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type")
    if kind not in (None, "none", "linear"):
        raise fields.wrong("rope.scaling.type", "none or linear")
    fields.require("rope.scaling.attn_factor", 1.0)
    linear = RopeScaling("linear", fields.number("rope.scaling.factor")) if kind == "linear" else None
    if rope_freqs is None:
        return linear
    factors = dequantise(rope_freqs)[0]
    if rope_freqs.rows != 1 or len(factors) != head_dim // 2 or not (factors > 0).all():
        raise ModelFileError(f"{fields.path}: rope_freqs.weight must hold {head_dim // 2} factors above zero.")
    if linear is not None:
        raise fields.wrong("rope.scaling.type", "none (the file also has rope_freqs.weight)")
    return RopeScaling("factors", factors=tuple(factors.tolist()))


def _hf_rope_scaling(path: Path, rope: Mapping[str, Any]) -> RopeScaling | None:
    fields = _Fields(path, rope)
    key = "rope_type" if "rope_type" in rope else "type"
    match fields.get(key):
        case None | "default":
            return None
        case "linear":
            return RopeScaling("linear", fields.number("factor"))
        case "llama3":
            low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
            if low >= high:
                raise fields.wrong("high_freq_factor", f"a number above low_freq_factor = {low}")
            original_context = fields.size("original_max_position_embeddings")
            return RopeScaling("llama3", fields.number("factor"), low, high, original_context)
    raise fields.wrong(key, "rope scaling of the kind default, linear or llama3")


def _hf_sliding_window(fields: _Fields, architecture: str) -> int | None:
    """The window, if every layer has it; a model that mixes windowed and full layers is refused."""
    window = fields.optional_size("sliding_window")
    if architecture == "llama" or (architecture != "mistral" and not fields.flag("use_sliding_window")):
        return None
    if architecture != "mistral" and window is not None:
        first = fields.get("max_window_layers")  # the layers before this one see everything
        if first != 0:
            raise fields.wrong("max_window_layers", "0 (every layer windowed)")
    return window
