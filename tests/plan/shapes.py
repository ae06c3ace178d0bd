"""Models small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.plan.catalog import Accelerator
from kvledger.plan.models import from_config
from kvledger.plan.shape import ModelShape

CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "max_position_embeddings": 64,
    "dtype": "bfloat16",
}
"""Parameters of a layer: q 64, k 32, v 32, o 64, feed-forward 3 x 128 = 384, norms 16: 592. Embedding and output 80
each, final norm 8: 2 x 592 + 168 = 1352. A token leaves 2 layers x 2 (K, V) x 2 heads x 2 elements = 16 elements."""


def shape(**changes: Any) -> ModelShape:
    """The small model, with other fields; None removes one."""
    values = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    return from_config("config.json", values)


def accelerator(**changes: Any) -> Accelerator:
    """One of 10^4 bytes, 100 bytes and 1000 operations per second."""
    values = {"memory": 10_000, "bandwidth": 100, "flops": {"bf16": 1000}, **changes}
    return Accelerator("toy", "Toy", "made up", "2026-12-01", **values)
