"""What an engine is asked to do when it is measured.

Standard library only: the workers of `benchmarks/` read this file in the environments of other engines.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """One timed piece of work.

    `steps` 0: compute a prompt of `depth` tokens from nothing, down to the logits of its last token. Otherwise: with
    `depth` tokens of each of `batch` sequences in the KV cache (not timed), compute `steps` more of each, all
    sequences together in every step, each token the likeliest one after the last.
    """

    name: str
    batch: int
    depth: int
    steps: int

    @property
    def num_tokens(self) -> int:
        """Tokens computed in the timed part, all sequences together."""
        return self.batch * (self.steps or self.depth)

    @property
    def num_positions(self) -> int:
        """Positions of one sequence, prompt and steps."""
        return self.depth + self.steps


REGIMES = (
    Work("prefill_512", batch=1, depth=512, steps=0),
    Work("prefill_2048", batch=1, depth=2048, steps=0),
    Work("decode_1", batch=1, depth=128, steps=48),
    Work("decode_1_at_2048", batch=1, depth=2048, steps=24),
    Work("decode_8", batch=8, depth=128, steps=32),
    Work("decode_16", batch=16, depth=128, steps=32),
)

WARM_UP = Work("warm_up", batch=2, depth=32, steps=4)


def prompts(work: Work, vocab_size: int) -> list[list[int]]:
    """`work.batch` lists of `work.depth` random ids, the same in every call."""
    draw = random.Random(work.name)
    return [[draw.randrange(vocab_size) for _ in range(work.depth)] for _ in range(work.batch)]
