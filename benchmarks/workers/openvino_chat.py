"""OpenVINO GenAI with prefix caching on, for `multiturn.py`. Settings: `default`, `f32`. See `openvino.py`.

The pipeline does not say how many tokens it took from its cache.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import openvino
import openvino_genai

from workers.pipe import Options, answer, options


class OpenVinoChat:
    def __init__(self, given: Options) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 4096
        scheduler.cache_size = 2
        scheduler.dynamic_split_fuse = False
        scheduler.enable_prefix_caching = True
        properties: dict[str, object] = {"INFERENCE_NUM_THREADS": given.threads, "PERFORMANCE_HINT": "LATENCY"}
        if given.setting != "default":
            properties["INFERENCE_PRECISION_HINT"] = given.setting
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(given.model), scheduler, "CPU", properties)
        self.request_ids = count()

    def complete(self, message: dict[str, Any]) -> dict[str, object]:
        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = message["max_tokens"]
        generation.ignore_eos = True
        generation.do_sample = False
        prompt = openvino.Tensor(np.array([message["tokens"]]))
        handle = self.pipeline.add_request(next(self.request_ids), prompt, generation)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        (output,) = handle.read_all()
        return {"tokens": list(output.generated_ids), "cached": None}


if __name__ == "__main__":
    given = options()
    answer(given, f"OpenVINO GenAI {openvino_genai.__version__}", OpenVinoChat(given).complete)
