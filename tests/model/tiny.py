"""Makers of tiny models with random weights and a real byte-level BPE vocabulary, as GGUF files and as HF folders.

The same `seed` and dimensions give the same weights whatever the container, so the two readers can be held against
each other. GGUF files of architecture "llama" get their q and k rows reordered the way llama.cpp's converter does.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType, quants
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

Arrays = dict[str, NDArray[np.float32]]

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VOCAB = 320

_KINDS = {
    bool: GGUFValueType.BOOL,
    int: GGUFValueType.UINT32,
    float: GGUFValueType.FLOAT32,
    str: GGUFValueType.STRING,
}

_TEXT = (
    "the cache keeps the blocks of the prompt, and the prompt keeps the tokens of the request; "
    "the ledger keeps the account of what was read and what was written, token by token and block by block. "
    "def read(self, block): return self.blocks[block]  # 12 blocks of 16 tokens are 192 tokens\n"
)


@cache
def tiny_tokenizer(vocab: int = VOCAB) -> Tokenizer:
    """Train a byte-level BPE tokenizer with `vocab` ids (at least 259) on a few sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[AddedToken(text, special=True) for text in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    assert tokenizer.get_vocab_size() == vocab, "the training text does not hold that many merges"
    return tokenizer


def tiny_gguf(
    path: Path,
    *,
    arch: str = "llama",
    format: str = "Q4_1",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 128,
    vocab: int = VOCAB,
    bias: bool = False,
    qk_norm: bool = False,
    tied: bool = True,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
    extra: Arrays | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Write a GGUF model to `path` and return it.

    "qwen2" has biases and "qwen3" has q/k norms unasked. `metadata` adds or (with None) drops keys, `extra` adds
    tensors, `without` leaves some out. Vectors are F32; matrices have `format`, whose block must
    divide `hidden` and `ffn`.
    """
    bias, qk_norm = bias or arch == "qwen2", qk_norm or arch == "qwen3"
    arrays = tiny_arrays(hidden, layers, heads, kv_heads, head_dim, ffn, vocab, bias, qk_norm, tied, seed)
    writer = GGUFWriter(path, arch)
    entries = {
        f"{arch}.block_count": layers,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": hidden,
        f"{arch}.feed_forward_length": ffn,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.rope.dimension_count": head_dim,
        f"{arch}.rope.freq_base": 10000.0,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
    } | _tokenizer_entries("smollm" if arch == "llama" else "qwen2", vocab)
    for key, value in (entries | (metadata or {})).items():
        writer.kv_data[0].pop(key, None)  # general.architecture is there already
        if value is not None:
            writer.add_key_value(key, value, _KINDS.get(type(value), GGUFValueType.ARRAY))
    for name, array in (arrays | (extra or {})).items():
        if name not in without:
            turned = arch == "llama" and name.split(".")[-2] in ("attn_q", "attn_k")
            _add_tensor(writer, name, _interleave(array, head_dim) if turned else array, format)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_folder(
    folder: Path,
    *,
    family: str = "llama",
    dtype: str = "F32",
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 128,
    vocab: int = VOCAB,
    bias: bool = False,
    tied: bool = True,
    seed: int = 0,
    shards: int = 1,
    config: dict[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Write a Hugging Face model folder (config, weights, tokenizer) and return it; `config` adds or drops keys."""
    arrays = tiny_arrays(
        hidden, layers, heads, kv_heads, head_dim, ffn, vocab, bias or family == "qwen2", family == "qwen3", tied, seed
    )
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "architectures": [f"{family.capitalize()}ForCausalLM"],
        "model_type": family,
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
    } | (config or {})
    values = {key: value for key, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    tiny_tokenizer(vocab).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": SPECIALS[2], "bos_token": SPECIALS[1], "chat_template": CHAT_TEMPLATE})
    )
    stored = {_hf_name(name): _as_dtype(array, dtype) for name, array in arrays.items() if name not in without}
    _save(folder, stored, shards)
    return folder


def tiny_arrays(
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    ffn: int,
    vocab: int,
    bias: bool,
    qk_norm: bool,
    tied: bool,
    seed: int,
) -> Arrays:
    """Return random weights by GGUF name, rows in half-split rotary order."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, cols: int) -> NDArray[np.float32]:
        return (random.standard_normal((rows, cols)) / np.sqrt(cols)).astype(np.float32)

    def gain(size: int) -> NDArray[np.float32]:
        return random.uniform(0.5, 1.5, size).astype(np.float32)

    arrays = {"token_embd.weight": matrix(vocab, hidden)}
    for layer in range(layers):
        block = f"blk.{layer}"
        arrays[f"{block}.attn_norm.weight"] = gain(hidden)
        for name, size in (("q", heads * head_dim), ("k", kv_heads * head_dim), ("v", kv_heads * head_dim)):
            arrays[f"{block}.attn_{name}.weight"] = 2 * matrix(size, hidden)
            if bias:
                arrays[f"{block}.attn_{name}.bias"] = random.standard_normal(size).astype(np.float32)
        if qk_norm:
            arrays[f"{block}.attn_q_norm.weight"] = gain(head_dim)
            arrays[f"{block}.attn_k_norm.weight"] = gain(head_dim)
        arrays[f"{block}.attn_output.weight"] = matrix(hidden, heads * head_dim)
        arrays[f"{block}.ffn_norm.weight"] = gain(hidden)
        arrays[f"{block}.ffn_gate.weight"] = matrix(ffn, hidden)
        arrays[f"{block}.ffn_up.weight"] = matrix(ffn, hidden)
        arrays[f"{block}.ffn_down.weight"] = matrix(hidden, ffn)
    arrays["output_norm.weight"] = gain(hidden)
    if not tied:
        arrays["output.weight"] = matrix(vocab, hidden)
    return arrays


def quantise(array: NDArray[np.float32], format: str) -> NDArray[Any]:
    """Store `array` in `format`. The library cannot write K-quants: those become random blocks of similar magnitude."""
    if not format.endswith("_K"):
        return quants.quantize(array, GGMLQuantizationType[format])
    rows, cols = array.shape
    random = np.random.default_rng(abs(int(array[0, 0] * 1e6)))
    spread = float(array.std()) * random.uniform(0.5, 1.5, (rows, cols // 256, 1))
    # Per format: bytes before and after the float16 scales, and what makes a block of random codes spread by about one.
    layout = {"Q4_K": (0, 140, (1 / 150, 1 / 20)), "Q5_K": (0, 172, (1 / 300, 1 / 20)), "Q6_K": (208, 0, (1 / 1400,))}
    before, after, units = layout[format]
    scales = np.concatenate([spread * unit for unit in units], axis=-1).astype(np.float16)
    head = random.integers(0, 256, (rows, cols // 256, before), np.uint8)
    tail = random.integers(0, 256, (rows, cols // 256, after), np.uint8)
    return np.concatenate([head, scales.view(np.uint8), tail], axis=-1).reshape(rows, -1)


def _tokenizer_entries(pre: str, vocab: int) -> dict[str, Any]:
    tokenizer = tiny_tokenizer(vocab)
    ids = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": sorted(ids, key=ids.__getitem__),
        "tokenizer.ggml.token_type": [int(TokenType.CONTROL)] * 3 + [int(TokenType.NORMAL)] * (vocab - 3),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add_tensor(writer: GGUFWriter, name: str, array: NDArray[np.float32], format: str) -> None:
    if array.ndim == 1:
        writer.add_tensor(name, array)
    else:
        writer.add_tensor(name, quantise(array, format), raw_dtype=GGMLQuantizationType[format])


def _interleave(array: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Move rows from half-split order to neighbouring pairs, one head after another."""
    interleaved = np.empty_like(array)
    for head in range(0, len(array), head_dim):
        for i in range(head_dim // 2):
            interleaved[head + 2 * i] = array[head + i]
            interleaved[head + 2 * i + 1] = array[head + i + head_dim // 2]
    return interleaved


def _hf_name(name: str) -> str:
    outer = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inner = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    match name.split("."):
        case ["blk", layer, part, kind]:
            return f"model.layers.{layer}.{inner[part]}.{kind}"
        case [part, kind]:
            return f"{outer[part]}.{kind}"
    raise ValueError(name)


def _as_dtype(array: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":  # as its bits: NumPy has no such type
        return quants.quantize(array, GGMLQuantizationType.BF16).view(np.uint16)
    return array.astype({"F32": np.float32, "F16": np.float16}[dtype])


def _save(folder: Path, stored: dict[str, NDArray[Any]], shards: int) -> None:
    if shards == 1:
        _save_file(folder / "model.safetensors", stored)
        return
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(stored.items())[shard::shards])
        _save_file(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _save_file(path: Path, stored: dict[str, NDArray[Any]]) -> None:
    save_file(stored, path)
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = data[8:start].replace(b'"U16"', b'"BF16"')
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[start:])
