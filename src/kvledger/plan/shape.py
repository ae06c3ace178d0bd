"""A model as planning sees it: its layers, its parameters, and nothing of what the numbers in it are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvledger.plan.dtypes import KV_BITS, WEIGHT_BITS, num_bytes
from kvledger.plan.layers import Layers

_PLAIN_BITS = WEIGHT_BITS["bf16"]


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a model. `context_length` is the longest text it was made for; parameters are counts.

    `head_parameters` is 0 where the output is the embedding. `weight_dtype` is how the weights are published; where
    they were measured (a GGUF file), `file_bytes` is what they take. `notes` say what was assumed in reading it.
    """

    name: str
    source: str
    hidden_size: int
    vocab_size: int
    context_length: int
    layers: Sequence[Layers]
    embedding_parameters: int
    head_parameters: int
    weight_dtype: str
    file_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        return sum(run.count for run in self.layers)

    @property
    def parameters(self) -> int:
        """All parameters. The final norm is the one vector outside of layers, embedding and head."""
        inside = sum(run.count * run.total_parameters for run in self.layers)
        return self.embedding_parameters + inside + self.hidden_size + self.head_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters that one token is multiplied with: the active ones of every layer, and the output."""
        inside = sum(run.count * run.active_parameters for run in self.layers)
        return inside + self.vocab_size * self.hidden_size

    @property
    def windows(self) -> tuple[int, ...]:
        """The distinct windows of its layers."""
        found = {getattr(run.mixer, "window", None) for run in self.layers}
        return tuple(sorted(window for window in found if window))

    def weights_bytes(self, dtype: str | None = None) -> int:
        """Bytes of all weights: as published, or stored as `dtype` (a key of `WEIGHT_BITS`)."""
        if dtype is None and self.file_bytes is not None:
            return self.file_bytes
        return self._stored(dtype or self.weight_dtype, self.embedding_parameters, lambda run: run.num_experts)

    def step_bytes(self, dtype: str | None, tokens: int) -> int:
        """Bytes of the weights that a step of `tokens` tokens reads: all layers, but of the experts only those that
        are used, and of a separate embedding only a few rows."""
        embedding = 0 if self.head_parameters else self.embedding_parameters
        read = self._stored(dtype or self.weight_dtype, embedding, lambda run: run.experts_touched(tokens))
        if dtype is None and self.file_bytes is not None:  # read in the proportion that the formula gives
            whole = self._stored(self.weight_dtype, self.embedding_parameters, lambda run: run.num_experts)
            return round(self.file_bytes * read / whole)
        return read

    def _stored(self, dtype: str, embedding: int, experts_of: Callable[[Layers], float]) -> int:
        bits = WEIGHT_BITS[dtype]
        plain = embedding + self.head_parameters + self.hidden_size
        packed = sum(run.count * run.parameters for run in self.layers)
        if dtype == "mxfp4":
            plain, packed = plain + packed, 0
        packed += round(sum(run.count * experts_of(run) * run.expert_parameters for run in self.layers))
        return num_bytes(plain, max(bits, _PLAIN_BITS)) + num_bytes(packed, bits)

    def kv_bytes_per_token(self, dtype: str, context: int = 0) -> int:
        """Bytes that one more token adds to a request that has `context` tokens: windowed layers stop adding."""
        return self.kv_bytes(dtype, context + 1) - self.kv_bytes(dtype, context)

    def kv_bytes(self, dtype: str, context: int) -> int:
        """Bytes of keys and values, or what stands for them, of one request with `context` tokens."""
        elements = sum(run.count * run.mixer.elements_per_token * run.mixer.tokens_kept(context) for run in self.layers)
        return num_bytes(elements, KV_BITS[dtype])

    @property
    def state_bytes(self) -> int:
        """Bytes of recurrent state of one request, whatever its length."""
        return sum(run.count * run.mixer.state_bytes for run in self.layers)

    def request_bytes(self, dtype: str, context: int) -> int:
        """All that one request of `context` tokens keeps."""
        return self.kv_bytes(dtype, context) + self.state_bytes

    def request_bytes_on(self, dtype: str, context: int, accelerators: int) -> int:
        """What one request keeps on each of `accelerators` that split the heads between them (tensor parallelism).

        Where there are fewer KV heads than accelerators, or they do not divide, some keep the same head or one more.
        """
        total = 0
        for run in self.layers:
            mixer = run.mixer
            elements = mixer.elements_per_token * mixer.tokens_kept(context)
            share = -(-mixer.copies // accelerators)  # KV heads on the accelerator that has most
            total += run.count * (
                num_bytes(elements * share // mixer.copies, KV_BITS[dtype]) + -(-mixer.state_bytes // accelerators)
            )
        return total
