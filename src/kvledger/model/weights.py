"""The weights of a model, whatever file they came from: GGUF names, half-split rotary order, checked shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import ModelFileError
from kvledger.model.config import ModelConfig, config_from_gguf
from kvledger.model.formats import Tensor, dequantise
from kvledger.model.gguf_file import read_gguf
from kvledger.model.safetensors_file import read_folder
from kvledger.text.tokenizer import Tokenizer


class Weights:
    """The tensors of one model, checked against its configuration.

    Names are GGUF's (`blk.0.attn_q.weight`) for every kind of file. Rows of the query and key projections are in
    half-split rotary order: element i of a head turns together with element i + head_dim / 2.
    """

    def __init__(
        self,
        path: Path,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        build_tokenizer: Callable[[], Tokenizer],
        *,
        interleaved_rotary: bool = False,
    ) -> None:
        self.path = path
        self.config = config
        self._tensors = tensors
        self._build_tokenizer = build_tokenizer
        self._interleaved_rotary = interleaved_rotary
        _check_tensors(path, config, tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """Return the tensor `name`, one of `expected_tensors(config)`."""
        tensor = self._tensors[name]
        if self._interleaved_rotary and name.rpartition(".")[0].endswith((".attn_q", ".attn_k")):
            return _half_split(tensor, self.config.head_dim)
        return tensor

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return the one-row tensor `name` as float32 [cols]."""
        values: NDArray[np.float32] = dequantise(self.tensor(name))[0]
        return values

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over all that decides the numbers: configuration, formats, shapes and bytes of tensors.

        The first use reads every byte of the weights once.
        """
        digest = hashlib.sha256(repr(self.config).encode())
        for name, _ in expected_tensors(self.config):
            tensor = self.tensor(name)
            digest.update(f"\n{name} {tensor.format.name} {tensor.rows} {tensor.cols}\n".encode())
            digest.update(tensor.data.data)
        return digest.hexdigest()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer, built on first use."""
        return self._build_tokenizer()


def load(path: Path | str) -> Weights:
    """Open a GGUF file, or a folder with `config.json` and `*.safetensors`; raises `ModelFileError`.

    Nothing is read but the headers: tensors are views of the mapped files.
    """
    path = Path(path)
    if path.is_dir():
        config, tensors = read_folder(path)
        tokenizer_config = path / "tokenizer_config.json"
        return Weights(
            path,
            config,
            tensors,
            lambda: Tokenizer.from_file(
                path / "tokenizer.json", tokenizer_config if tokenizer_config.exists() else None
            ),
        )
    file = read_gguf(path)
    config = config_from_gguf(path, file.metadata, file.tensors)
    return Weights(
        path,
        config,
        file.tensors,
        lambda: Tokenizer.from_metadata(file.metadata, path),
        interleaved_rotary=config.architecture == "llama",  # the one architecture whose q and k llama.cpp reorders
    )


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the name and (rows, cols) of every tensor that a model of this configuration has."""
    hidden, ffn, q_size, kv_size = config.hidden_size, config.ffn_size, config.q_size, config.kv_size
    yield "token_embd.weight", (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        block = f"blk.{layer}"
        yield f"{block}.attn_norm.weight", (1, hidden)
        for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
            yield f"{block}.attn_{name}.weight", (size, hidden)
            if config.qkv_bias:
                yield f"{block}.attn_{name}.bias", (1, size)
        if config.qk_norm:
            yield f"{block}.attn_q_norm.weight", (1, config.head_dim)
            yield f"{block}.attn_k_norm.weight", (1, config.head_dim)
        yield f"{block}.attn_output.weight", (hidden, q_size)
        yield f"{block}.ffn_norm.weight", (1, hidden)
        yield f"{block}.ffn_gate.weight", (ffn, hidden)
        yield f"{block}.ffn_up.weight", (ffn, hidden)
        yield f"{block}.ffn_down.weight", (hidden, ffn)
    yield "output_norm.weight", (1, hidden)
    if not config.tied_head:
        yield "output.weight", (config.vocab_size, hidden)


def _check_tensors(path: Path, config: ModelConfig, tensors: Mapping[str, Tensor]) -> None:
    """Raise `ModelFileError` unless `tensors` are exactly those of `config`, in their shapes."""
    unused = set(tensors) - {"rope_freqs.weight"}  # that one is part of the configuration
    for name, (rows, cols) in expected_tensors(config):
        found = tensors.get(name)
        if found is None:
            raise ModelFileError(f"{path} has no tensor {name}: it is not a complete {config.architecture} model.")
        if (found.rows, found.cols) != (rows, cols):
            raise ModelFileError(
                f"{path}: the tensor {name} is {found.rows} x {found.cols}, but the configuration says {rows} x {cols}."
            )
        unused.remove(name)
    if unused:
        raise ModelFileError(
            f"{path} has the tensor {min(unused)}, which this program does not know as part of a {config.architecture}"
            " model: its results would be wrong."
        )


def _half_split(tensor: Tensor, head_dim: int) -> Tensor:
    """Reorder a q or k projection, or its bias, from rotary pairs (2i, 2i + 1) to pairs (i, i + head_dim / 2)."""
    size = tensor.cols if tensor.rows == 1 else tensor.rows
    order = np.arange(size).reshape(-1, head_dim // 2, 2).swapaxes(1, 2).ravel()
    elements = tensor.data.reshape(size, -1)[order]
    return replace(tensor, data=elements.reshape(tensor.data.shape))
