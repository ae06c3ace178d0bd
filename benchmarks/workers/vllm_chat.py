"""vLLM on a CPU with prefix caching on, for `multiturn.py`. Settings: `float32`, `bfloat16`. See `vllm.py`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import vllm

from workers.pipe import Options, answer, options
from workers.vllm import dequantise


class VllmChat:
    def __init__(self, given: Options, folder: Path) -> None:
        dequantise(given.model, folder)
        self.llm = vllm.LLM(
            str(folder),
            skip_tokenizer_init=True,
            dtype=given.setting,
            max_model_len=4096,
            enable_prefix_caching=True,
        )

    def complete(self, message: dict[str, Any]) -> dict[str, object]:
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=message["max_tokens"], ignore_eos=True, detokenize=False
        )
        (request,) = self.llm.generate({"prompt_token_ids": message["tokens"]}, sampling, use_tqdm=False)
        return {"tokens": list(request.outputs[0].token_ids), "cached": request.num_cached_tokens}


if __name__ == "__main__":
    given = options()
    with tempfile.TemporaryDirectory() as folder:
        answer(given, f"vLLM {vllm.__version__}", VllmChat(given, Path(folder)).complete)
