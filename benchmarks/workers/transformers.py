"""Hugging Face Transformers on PyTorch (PyPI packages `transformers`, `torch`, `gguf`, `accelerate`).

The GGUF is dequantised when it is loaded. Attention is PyTorch's scaled_dot_product_attention, the cache grows by
concatenation (`DynamicCache`), and logits are computed for the last token only. Settings: `float32`, `bfloat16`.
"""

from __future__ import annotations

import time

import torch
import transformers

from kvledger.bench.work import Work, prompts
from workers.pipe import Options, options, serve


class Transformers:
    def __init__(self, given: Options) -> None:
        torch.set_num_threads(given.threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            given.model.parent,
            gguf_file=given.model.name,
            dtype=getattr(torch, given.setting),
            attn_implementation="sdpa",
        ).eval()

    @torch.inference_mode()
    def measure(self, work: Work) -> float:
        cache = transformers.DynamicCache(config=self.model.config)
        tokens = torch.tensor(prompts(work, self.model.config.vocab_size))
        start = time.perf_counter()
        tokens = self._next(tokens, cache)
        prefilled = time.perf_counter()
        for _ in range(work.steps):
            tokens = self._next(tokens, cache)
        end = time.perf_counter()
        return end - prefilled if work.steps else prefilled - start

    def _next(self, tokens: torch.Tensor, cache: transformers.DynamicCache) -> torch.Tensor:
        logits = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1:].argmax(-1)


if __name__ == "__main__":
    given = options()
    serve(given, f"Transformers {transformers.__version__}, torch {torch.__version__}", Transformers(given).measure)
