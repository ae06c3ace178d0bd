"""The forward pass against the clock, without scheduler, sampler or server around it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvledger.bench.work import REGIMES, Work, prompts
from kvledger.clock import Clock, SystemClock
from kvledger.errors import ModelFileError
from kvledger.model.batch import Run
from kvledger.model.kv import KVDtype, KVPool, default_dtype
from kvledger.model.llama import LlamaModel
from kvledger.model.weights import load

STEP_TOKENS = 512  # a prompt is computed in chunks of at most this many tokens


class EngineBench:
    """A loaded model and a pool just large enough for every regime; blocks lie in shuffled order, as in service.

    Raises `ModelFileError` for a file that cannot be used or a model made for too few tokens.
    """

    def __init__(
        self,
        path: Path,
        *,
        mode: str = "fast",
        kv_dtype: KVDtype | None = None,
        threads: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        weights = load(path)
        needed = max(work.num_positions for work in REGIMES)
        if weights.config.context_length < needed:
            raise ModelFileError(
                f"{path} is made for {weights.config.context_length} tokens and the benchmark needs {needed}:"
                " measure a model with a longer context."
            )
        kv_dtype = kv_dtype or default_dtype(weights.config, mode)
        self.model = LlamaModel(weights, mode=mode, kv_dtype=kv_dtype, threads=threads, context=needed)
        num_blocks = max(work.batch * _blocks(work.num_positions) for work in REGIMES)
        self.pool = KVPool(weights.config, num_blocks, dtype=kv_dtype)
        self._order = np.random.default_rng(0).permutation(num_blocks).astype(np.int32)
        self._clock = clock or SystemClock()

    @property
    def pool_bytes(self) -> int:
        """Bytes of the KV pool."""
        return self.pool.num_blocks * self.pool.bytes_per_block

    def tokens_per_second(self, work: Work) -> float:
        """Do `work` once."""
        return work.num_tokens / self.seconds(work)

    def seconds(self, work: Work) -> float:
        """Do `work` once and return what its timed part took."""
        tables = [self._table(i, work) for i in range(work.batch)]
        start = self._clock.monotonic()
        last = [self._prefill(tokens, table) for tokens, table in zip(self._prompts(work), tables, strict=True)]
        prefilled = self._clock.monotonic()
        tokens = np.array(last, np.int32)
        for position in range(work.depth, work.num_positions):
            runs = [Run(tokens[i : i + 1], position, table) for i, table in enumerate(tables)]
            tokens = self.model.forward(runs, self.pool).argmax(axis=1).astype(np.int32)
        end = self._clock.monotonic()
        return end - prefilled if work.steps else prefilled - start

    def _prefill(self, tokens: NDArray[np.int32], table: NDArray[np.int32]) -> int:
        """Compute a whole prompt in chunks and return the likeliest next token."""
        for start in range(0, len(tokens), STEP_TOKENS):
            chunk = tokens[start : start + STEP_TOKENS]
            is_last = start + len(chunk) == len(tokens)
            logits = self.model.forward([Run(chunk, start, table, num_logits=int(is_last))], self.pool)
        return int(logits[0].argmax())

    def _prompts(self, work: Work) -> list[NDArray[np.int32]]:
        return [np.array(tokens, np.int32) for tokens in prompts(work, self.model.config.vocab_size)]

    def _table(self, sequence: int, work: Work) -> NDArray[np.int32]:
        size = _blocks(work.num_positions)
        return self._order[sequence * size : (sequence + 1) * size]


def _blocks(num_positions: int) -> int:
    return -(-num_positions // KVPool.block_size)
