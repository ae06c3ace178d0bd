"""What one forward pass computes: the contract between the scheduler and a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kvledger.model.config import ModelConfig
from kvledger.model.kv import KVPool


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of one sequence, computed together in one step.

    `tokens` are the ids at positions `start`, `start + 1`, ...; the KV of all positions before `start` is already in
    the pool. `table[i]` is the pool block that holds positions `i * block_size` and on; it covers every token.
    Logits are returned for the last `num_logits` tokens of the run (0 for a prompt chunk that is not the last one).
    """

    tokens: NDArray[np.int32]
    start: int
    table: NDArray[np.int32]
    num_logits: int = 1


class Model(Protocol):
    """Anything that turns runs into logits. Results of a run do not depend on what else is in the batch."""

    config: ModelConfig

    def forward(self, runs: list[Run], pool: KVPool) -> NDArray[np.float32]:
        """Write K and V of every token of every run into `pool`; return logits [sum of num_logits, vocab_size].

        The array is the caller's until the next call. Runs of one call never share a block that any of them writes.
        """
        ...
