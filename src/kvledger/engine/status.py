"""What the engine is doing, and what it has done since it was built."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kvledger.engine.request import FinishReason, Usage


@dataclass(frozen=True)
class EngineStatus:
    """A snapshot; its numbers may come from neighbouring moments of one step.

    Idle blocks hold cached KV that nobody uses now. `computed_tokens` counts every token that went through the model,
    recomputed ones included; `prompt_tokens`, `reused_tokens` and `output_tokens` are sums over the usage of finished
    requests, prompts only of those that were admitted.
    """

    running: int
    waiting: int
    free_blocks: int
    idle_blocks: int
    total_blocks: int
    preemptions: int
    steps: int
    computed_tokens: int
    prompt_tokens: int
    reused_tokens: int
    output_tokens: int
    finished: dict[FinishReason, int]


class Totals:
    """Sums over the life of an engine, and how long a request takes of late."""

    def __init__(self) -> None:
        self.steps = 0
        self.computed_tokens = 0
        self.prompt_tokens = 0
        self.reused_tokens = 0
        self.output_tokens = 0
        self.finished: Counter[FinishReason] = Counter()
        self.seconds_per_request = 1.0
        """From admission to the end; a moving average."""

    def add_step(self, num_tokens: int) -> None:
        """Count a forward pass over `num_tokens` tokens."""
        self.steps += 1
        self.computed_tokens += num_tokens

    def add_request(self, reason: FinishReason, usage: Usage, *, was_admitted: bool) -> None:
        """Count a request that has ended."""
        self.finished[reason] += 1
        self.output_tokens += usage.output_tokens
        if was_admitted:
            self.prompt_tokens += usage.prompt_tokens
            self.reused_tokens += usage.reused_tokens
            self.seconds_per_request += 0.1 * (usage.prefill + usage.decode - self.seconds_per_request)
