"""The Llama-family forward pass: packs the weights once, then runs steps over ragged batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import InvalidRequestError, ModelFileError
from kvledger.model.batch import Run
from kvledger.model.config import rope_frequencies
from kvledger.model.kernels import step
from kvledger.model.kernels.activations import tile_bytes
from kvledger.model.kernels.attention import BLOCK, HEAD_UNIT, MAX_ROWS, Tile, tile_tokens
from kvledger.model.kernels.cpu import Isa, best_isa, num_cores
from kvledger.model.kernels.intrinsics import yield_address
from kvledger.model.kernels.jit import is_warm
from kvledger.model.kernels.panels import GROUP, ROWS, Panels, pack
from kvledger.model.kernels.table import kernels_for
from kvledger.model.kernels.team import Team
from kvledger.model.kernels.tiling import divide
from kvledger.model.kernels.workspace import Workspace
from kvledger.model.kv import KVPool, head_shape
from kvledger.model.weights import Weights

OPS = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
MODES = ("fast", "exact")


class LlamaModel:
    """A model ready to run. Not safe for concurrent `forward` calls.

    `mode` "fast" rounds activations to int8 in groups of 32 columns wherever the weights are quantised; "exact" keeps
    them in float32. Logits of a run are equal bit for bit whatever else is in the batch, however the prompt was cut,
    and on any number of `threads`. `isa` chooses the kernels (default: the best this processor has), which does not
    change bits either. `context` limits the positions below the model's own context length. `progress` is told if
    kernels have to be compiled.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        mode: str = "fast",
        kv_dtype: str = "f16",
        threads: int | None = None,
        isa: Isa | None = None,
        context: int | None = None,
        progress: Callable[[str], None] = lambda message: None,
    ) -> None:
        config = weights.config
        if mode not in MODES:
            raise InvalidRequestError(f"Mode {mode!r} is not known: use one of {', '.join(MODES)}.", param="mode")
        if not is_warm():
            progress("Compiling the kernels for this processor, once: this takes up to 15 seconds.")
        self.config = config
        self.kv_dtype = kv_dtype
        self.threads = threads or num_cores()
        self.context = min(config.context_length, config.sliding_window or config.context_length, context or 1 << 62)
        self._keep: list[NDArray[Any]] = []
        self._shape = head_shape(config, kv_dtype)
        self._check_sizes(weights.path)
        self._kernels = kernels_for(isa or best_isa())
        self._pack(weights, mode)
        self._team = Team(self.threads)
        self._tiles = tile_tokens(self._shape, self._kernels.isa)
        # One token through everything, so that no later step has to compile.
        token = np.zeros(1, np.int32)
        self.forward([Run(token, 0, token)], KVPool(config, 1, kv_dtype))

    # -- weights ----------------------------------------------------------------------------------------------------

    def _check_sizes(self, path: Path) -> None:
        """Raise `ModelFileError` for sizes that the kernels are not built for."""
        config = self.config
        for what, size, unit in (
            ("hidden size", config.hidden_size, GROUP),
            ("feed-forward size", config.ffn_size, GROUP),
            ("query size", config.q_size, GROUP),
            ("head size", config.head_dim, HEAD_UNIT),
        ):
            if size % unit:
                raise ModelFileError(f"{path}: the {what} {size} is not a multiple of {unit}, which the kernels need.")
        if self._shape.group > MAX_ROWS:
            raise ModelFileError(
                f"{path}: {self._shape.group} query heads share a KV head, and the kernels take {MAX_ROWS} at most."
            )

    def _pack(self, weights: Weights, mode: str) -> None:
        config, kernels, shape = self.config, self._kernels, self._shape
        ops = np.zeros((config.num_layers + 1, len(OPS), 5), np.int64)
        vectors = np.zeros((config.num_layers + 1, 5), np.int64)
        packed: dict[tuple[int, int], Panels] = {}
        for layer in range(config.num_layers):
            for op, name in enumerate(OPS):
                packed[layer, op] = pack(weights.tensor(f"blk.{layer}.{name}.weight"))
            self._fill_vectors(weights, layer, vectors)
        packed[config.num_layers, 0] = embedding = pack(weights.tensor("token_embd.weight"))
        if not config.tied_head:
            packed[config.num_layers, 0] = pack(weights.tensor("output.weight"))
        vectors[-1, step.ATTENTION_NORM] = self._address(weights.vector("output_norm.weight"))

        int8 = {
            name: mode == "fast" and all(packed[key].format.is_quantised for key in packed if key in inputs)
            for name, inputs in self._inputs().items()
        }
        for name, inputs in self._inputs().items():
            for layer, op in inputs:
                panels = packed[layer, op]
                add = layer < config.num_layers and OPS[op] in ("attn_output", "ffn_down")
                ops[layer, op] = (
                    self._address(panels.data),
                    kernels.linear(panels.format, int8[name], add),
                    panels.data.shape[1],
                    panels.num_panels,
                    panels.groups,
                )
        if int8["head"]:
            ops[-1, step.HEAD_REST] = ops[-1, step.HEAD]
            ops[-1, step.HEAD_REST, step.KERNEL] = kernels.linear(packed[config.num_layers, 0].format, True, True)
        eps = config.norm_eps
        tiles = [
            Tile(shape, n) if n in tile_tokens(shape, kernels.isa) else None for n in range(1, step.MAX_TILE_TOKENS + 1)
        ]
        self._ops, self._vectors = ops, vectors
        self._model = step.filled(
            step.MODEL,
            embedding=self._address(embedding.data),
            embedding_stride=embedding.data.shape[1],
            embed=kernels.embed(embedding.format),
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            q_size=config.q_size,
            kv_heads=config.num_kv_heads,
            group=shape.group,
            head_dim=config.head_dim,
            ffn_groups=config.ffn_size // GROUP,
            row_tile_bytes=tile_bytes(config.hidden_size, int8["ffn"]),
            ffn_tile_bytes=tile_bytes(config.ffn_size, int8["down"]),
            begin=kernels.begin(),
            end=kernels.end(),
            norm_attention=kernels.norm(eps, int8["attention"]),
            norm_ffn=kernels.norm(eps, int8["ffn"]),
            norm_final=kernels.norm_twice(eps) if int8["head"] else kernels.norm(eps, False),
            head_rest=tile_bytes(config.hidden_size, True) if int8["head"] else 0,
            quantise=kernels.quantise(int8["output"]),
            gate=kernels.gate(int8["down"]),
            rotate=kernels.rotate(shape, eps, config.qkv_bias, config.qk_norm),
            attend=[kernels.attend(t) if t else 0 for t in tiles],
            merge=[kernels.merge(t) if t else 0 for t in tiles],
            finish=[kernels.finish(t) if t else 0 for t in tiles],
            angles=self._address(self._angles(weights)),
            angle_stride=4 * config.head_dim,
            layer_stride=shape.head_bytes(BLOCK) * config.num_kv_heads,
            head_stride=shape.head_bytes(BLOCK),
            block_stride=shape.head_bytes(BLOCK) * config.num_kv_heads * config.num_layers,
            yield_thread=yield_address(),
        )
        self._workspace = Workspace(
            shape,
            num_layers=config.num_layers,
            hidden=config.hidden_size,
            ffn=config.ffn_size,
            logits=packed[config.num_layers, 0].num_panels * ROWS,
            threads=self.threads,
        )

    def _inputs(self) -> dict[str, set[tuple[int, int]]]:
        """Which (layer, op) read the same kind of activation rows."""
        layers = range(self.config.num_layers)
        return {
            "attention": {(layer, op) for layer in layers for op in (step.Q, step.K, step.V)},
            "output": {(layer, step.OUTPUT) for layer in layers},
            "ffn": {(layer, op) for layer in layers for op in (step.GATE, step.UP)},
            "down": {(layer, step.DOWN) for layer in layers},
            "head": {(self.config.num_layers, 0)},
        }

    def _fill_vectors(self, weights: Weights, layer: int, vectors: NDArray[np.int64]) -> None:
        block = f"blk.{layer}"
        vectors[layer, step.ATTENTION_NORM] = self._address(weights.vector(f"{block}.attn_norm.weight"))
        vectors[layer, step.FFN_NORM] = self._address(weights.vector(f"{block}.ffn_norm.weight"))
        if self.config.qkv_bias:
            biases = [weights.vector(f"{block}.attn_{name}.bias") for name in "qkv"]
            vectors[layer, step.BIAS] = self._address(np.concatenate(biases))
        if self.config.qk_norm:
            for name, column in (("q", step.Q_NORM), ("k", step.K_NORM)):
                vectors[layer, column] = self._address(weights.vector(f"{block}.attn_{name}_norm.weight"))

    def _angles(self, weights: Weights) -> NDArray[np.float32]:
        """float32 [context, head_dim]: cosines, then sines, of each position's rotation."""
        angles = np.arange(self.context)[:, None] * rope_frequencies(self.config)
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    def _address(self, array: NDArray[Any]) -> int:
        array = np.ascontiguousarray(array)
        self._keep.append(array)
        return array.ctypes.data

    # -- steps ------------------------------------------------------------------------------------------------------

    def forward(self, runs: list[Run], pool: KVPool) -> NDArray[np.float32]:
        """See `kvledger.model.batch.Model`. Raises `ValueError` for tokens, positions or blocks out of range."""
        tokens = np.concatenate([run.tokens for run in runs]).astype(np.int64)
        lengths = [len(run.tokens) for run in runs]
        self._check(runs, tokens, pool)
        width = max(len(run.table) for run in runs) + 3
        tables = np.zeros((len(runs), width), np.int32)
        positions = np.empty(len(tokens), np.int64)
        selected: list[int] = []
        at = 0
        for i, (run, length) in enumerate(zip(runs, lengths, strict=True)):
            tables[i, : len(run.table)] = run.table
            positions[at : at + length] = np.arange(run.start, run.start + length)
            selected.extend(range(at + length - run.num_logits, at + length))
            at += length
        spans = [(run.start, length) for run, length in zip(runs, lengths, strict=True)]
        work = divide(spans, self._tiles, self.config.num_kv_heads)
        space = self._workspace
        batch = step.Batch(
            model=self._model,
            ops=self._ops,
            vectors=self._vectors,
            buffers=space.buffers(len(tokens), len(selected), work.num_partials),
            pool=pool.data.ctypes.data,
            tokens=tokens,
            positions=positions,
            token_tables=np.repeat(np.arange(len(runs)), lengths),
            tables=tables,
            tiles=work.tiles,
            units=work.units,
            merges=work.merges,
            selected=np.array(selected, np.int64),
            counters=space.fresh_counters(),
        )
        self._team.run(batch)
        return space.logits[: len(selected), : self.config.vocab_size]

    def _check(self, runs: list[Run], tokens: NDArray[np.int64], pool: KVPool) -> None:
        """Kernels trust their input; nothing else may reach them."""
        if tokens.min() < 0 or tokens.max() >= self.config.vocab_size:
            raise ValueError(f"token ids must lie in 0..{self.config.vocab_size - 1}")
        for run in runs:
            end = run.start + len(run.tokens)
            if not 0 <= run.start < end <= self.context:
                raise ValueError(f"positions {run.start}..{end} lie outside a context of {self.context}")
            if len(run.table) * BLOCK < end:
                raise ValueError(f"a table of {len(run.table)} blocks does not cover {end} positions")
            if run.table.min() < 0 or run.table.max() >= pool.num_blocks:
                raise ValueError(f"block numbers must lie in 0..{pool.num_blocks - 1}")
            if not 0 <= run.num_logits <= len(run.tokens):
                raise ValueError(f"{run.num_logits} logits of a run of {len(run.tokens)} tokens")
        if pool.dtype != self.kv_dtype:
            raise ValueError(f"this model was prepared for a {self.kv_dtype} pool, not {pool.dtype}")
        if pool.bytes_per_block != self._model["block_stride"]:
            raise ValueError("the pool was made for a model of another shape")
