"""Make the golden_*.json files: logits of Hugging Face transformers on the same model files, in float32 on a CPU.

Run it from the root of the checkout in an environment with torch and transformers (made with torch 2.13.0 and
transformers 5.24.0): `python -m tests.model.make_golden PATH_OF_THE_SMOLLM2_GGUF`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.model.tiny import tiny_folder

HERE = Path(__file__).parent
TEXT = (
    "The prompt cache keeps the key and value blocks of every prompt it has seen. When a second request begins with the"
    " same tokens, the server reads those blocks instead of computing them again: 我喜欢猫, привет, naïve café.\n\n"
    "def read(block: int) -> bytes:\n    return pool[block * 16 : (block + 1) * 16]\n"
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama 2": {"family": "llama", "tied": False, "kv_heads": 4},
    "llama 3": {"family": "llama", "config": {"rope_scaling": LLAMA3, "rope_theta": 500000.0}},
    "llama, linear rope": {
        "family": "llama",
        "config": {
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
            "rope_theta": None,
        },
    },
    "mistral": {"family": "mistral", "tied": False, "config": {"sliding_window": 8}},
    "qwen2": {"family": "qwen2", "kv_heads": 1},
    "qwen3": {"family": "qwen3", "head_dim": 32, "tied": False},
}


def main() -> None:
    made_with = (
        f"torch {torch.__version__}, transformers {transformers.__version__}, float32, by tests/model/make_golden.py"
    )
    gguf = Path(sys.argv[1])
    real = {"made_with": made_with, "file": gguf.name, "text": TEXT} | _real(gguf)
    (HERE / "golden_smollm2.json").write_text(json.dumps(real, ensure_ascii=False, indent=1) + "\n")
    families = {"made_with": made_with, "cases": [_tiny(name, kwargs) for name, kwargs in FAMILIES.items()]}
    (HERE / "golden_families.json").write_text(json.dumps(families, indent=1) + "\n")


def _real(gguf: Path) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    tokens = tokenizer(TEXT, add_special_tokens=False).input_ids
    logits = _logits(model, tokens)
    fixed_ids = [0, 1, 2, 28, 284, 1000, 10000, 49151]
    positions = []
    for position in (0, 1, 7, 15, 16, 31, 47, 63, len(tokens) - 1):
        row = logits[position]
        top = torch.topk(row, 8)
        positions.append(
            {
                "position": position,
                "top_ids": top.indices.tolist(),
                "top": _rounded(top.values),
                "fixed": _rounded(row[fixed_ids]),
            }
        )
    return {"tokens": tokens, "fixed_ids": fixed_ids, "positions": positions}


def _tiny(name: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    tokens = [(7 * i * i + 3 * i + 5) % 320 for i in range(40)]
    ids = [0, 5, 100, 200, 319]
    with tempfile.TemporaryDirectory() as folder:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tiny_folder(Path(folder), **kwargs), dtype=torch.float32, attn_implementation="eager"
        )
        logits = _logits(model, tokens)
    return {
        "name": name,
        "tiny_folder": kwargs,
        "tokens": tokens,
        "ids": ids,
        "logits": {position: _rounded(logits[position][ids]) for position in (0, 1, 8, 9, 39)},
    }


def _logits(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model.eval()(torch.tensor([tokens])).logits[0]
    return logits


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 5) for value in values.tolist()]


if __name__ == "__main__":
    main()
