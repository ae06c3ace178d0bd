"""From the fields of a configuration to layers, family by family.

Field names are those of Hugging Face configurations; the formulas follow the models' own code in `transformers`, and
the counts they give are checked against published ones in the tests. Heads for multi-token prediction are not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from kvledger.plan.families import dense, experts, hybrid
from kvledger.plan.fields import Fields
from kvledger.plan.layers import Layers

FAMILIES: dict[str, Callable[[Fields], list[Layers]]] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "mistral3": dense.mistral,
    "phi3": dense.mistral,
    "granite": dense.llama,
    "smollm3": dense.llama,
    "gemma": dense.llama,
    "gemma2": dense.gemma2,
    "gemma3": dense.gemma3,
    "gemma3_text": dense.gemma3,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "olmo2": dense.olmo2,
    "falcon": dense.falcon,
    "mixtral": experts.mixtral,
    "qwen3_moe": experts.qwen3_moe,
    "gpt_oss": experts.gpt_oss,
    "llama4": experts.llama4,
    "llama4_text": experts.llama4,
    "glm4_moe": experts.glm4_moe,
    "deepseek_v2": experts.deepseek_v2,
    "deepseek_v3": experts.deepseek_v3,
    "kimi_k2": experts.deepseek_v3,
    "qwen3_next": hybrid.qwen3_next,
    "jamba": hybrid.jamba,
    "granitemoehybrid": hybrid.granite_hybrid,
    "minimax_text_01": hybrid.minimax,
}
"""By `model_type`."""

TIED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "falcon"})
"""Families whose output is the embedding unless the configuration says otherwise."""


def layers_of(family: str, fields: Fields) -> list[Layers]:
    """The layers of a model of `family`, a key of `FAMILIES`; raises `ModelFileError` naming what is missing."""
    return FAMILIES[family](fields)
