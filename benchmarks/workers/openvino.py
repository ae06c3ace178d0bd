"""OpenVINO GenAI's continuous-batching pipeline, which reads the GGUF itself (PyPI package `openvino-genai`).

The pipeline is stepped by hand: with `dynamic_split_fuse` off and room for every prompt token in one batch, the first
step is the whole prefill and every later one a decode step of all sequences. Settings: `default` computes in bf16 where
the CPU can, `f32` in float32 (slower prefill, often faster decode); both keep the weights in four or eight bits and
the KV cache in the pipeline's default u8.
"""

from __future__ import annotations

import time
from itertools import count

import numpy as np
import openvino
import openvino_genai

from kvledger.bench.work import Work, prompts
from workers.pipe import Options, options, serve


class OpenVino:
    def __init__(self, given: Options) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 4096  # more than the prompts of any batch together
        scheduler.max_num_seqs = 64
        scheduler.cache_size = 2
        scheduler.dynamic_split_fuse = False
        scheduler.enable_prefix_caching = False
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": given.threads, "PERFORMANCE_HINT": "LATENCY"}
        if given.setting != "default":
            properties["INFERENCE_PRECISION_HINT"] = given.setting
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(given.model), scheduler, "CPU", properties)
        self.vocab_size = len(self.pipeline.get_tokenizer().get_vocab())
        self.request_ids = count()

    def measure(self, work: Work) -> float:
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = work.steps + 1
        generation.ignore_eos = True
        generation.do_sample = False
        handles = [  # a request lives only as long as its handle
            self.pipeline.add_request(next(self.request_ids), openvino.Tensor(np.array([tokens])), generation)
            for tokens in prompts(work, self.vocab_size)
        ]
        start = time.perf_counter()
        self.pipeline.step()
        prefilled = time.perf_counter()
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        end = time.perf_counter()
        for handle in handles:
            (output,) = handle.read_all()
            assert len(output.generated_ids) == work.steps + 1
        return end - prefilled if work.steps else prefilled - start


if __name__ == "__main__":
    given = options()
    serve(given, f"OpenVINO GenAI {openvino_genai.__version__}", OpenVino(given).measure)
