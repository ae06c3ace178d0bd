"""What a model takes on accelerators: weights, keys and values, activations, and how many requests there is room for.

Weights are divided evenly between the accelerators, and heads too, which is tensor parallelism; a request's keys and
values are then on each of them in part. Allocation is paged in blocks of 16 tokens (Kwon et al., arXiv:2309.06180);
what one contiguous piece per request would take is worked out beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from kvledger.errors import PlanError
from kvledger.plan.catalog import Accelerator
from kvledger.plan.layers import LatentAttention, Recurrent
from kvledger.plan.shape import ModelShape

BLOCK = 16
_MOST = 10**12
_LOGIT_BYTES = 4
_ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class MemoryPlan:
    """A model, a load, and what they run on. `context` is the tokens of one request, prompt and answer together.

    `weight_dtype` None leaves the weights as they are published. `utilization` is the share of the memory that may be
    used, `step_tokens` the most tokens computed at once; `reserve` is what contiguous allocation sets aside for a
    request (None: the model's context length). Without an accelerator nothing is said about what fits.
    """

    shape: ModelShape
    context: int
    concurrency: int
    kv_dtype: str = "fp16"
    weight_dtype: str | None = None
    accelerator: Accelerator | None = None
    accelerators: int = 1
    utilization: float = 0.9
    step_tokens: int = 2048
    reserve: int | None = None

    def __post_init__(self) -> None:
        for name, value in (
            ("--context", self.context),
            ("--concurrency", self.concurrency),
            ("--gpus", self.accelerators),
            ("--step-tokens", self.step_tokens),
            ("--reserve", 1 if self.reserve is None else self.reserve),
        ):
            if not 1 <= value <= _MOST:
                raise PlanError(f"{name} is {value}: a number from 1 to {_MOST:,} is needed.")
        if not 0 < self.utilization <= 1:
            raise PlanError(f"--utilization is {self.utilization}: a share of the memory above 0, up to 1, is needed.")
        if self.reserve is not None and self.reserve < self.context:
            raise PlanError(f"--reserve is {self.reserve}, less than the {self.context} tokens of a request.")

    # -- sizes, all accelerators together -------------------------------------------------------------------------

    @cached_property
    def weights_bytes(self) -> int:
        return self.shape.weights_bytes(self.weight_dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        """What one token adds in all layers that keep something per token, while it is within every window."""
        return self.shape.kv_bytes_per_token(self.kv_dtype)

    @property
    def kv_bytes_per_request(self) -> int:
        """Keys, values and recurrent state of one request."""
        return self.shape.request_bytes(self.kv_dtype, self.context)

    @property
    def kv_bytes_total(self) -> int:
        """Of all requests."""
        return self.concurrency * self.kv_bytes_per_request

    @property
    def activations_bytes(self) -> int:
        """An estimate of what one step needs while it runs: four vectors of the hidden size and the widest layer's two
        of the feed-forward size for every token of it, in 16 bits; logits of every running request in 32."""
        widest = max(run.ffn_size for run in self.shape.layers)
        tokens = min(self.step_tokens, self.context * self.concurrency)
        step = tokens * (4 * self.shape.hidden_size + 2 * widest) * _ACTIVATION_BYTES
        return step + self.concurrency * self._logits_bytes

    @property
    def _logits_bytes(self) -> int:
        return self.shape.vocab_size * _LOGIT_BYTES

    # -- paged and contiguous -------------------------------------------------------------------------------------

    @property
    def paged_bytes_per_request(self) -> int:
        """With the empty rest of the last block."""
        return self.shape.request_bytes(self.kv_dtype, self._paged_context)

    @property
    def reserved_context(self) -> int:
        """Tokens that contiguous allocation sets aside for a request."""
        return max(self.reserve or self.shape.context_length, self.context)

    @property
    def contiguous_bytes_per_request(self) -> int:
        """As much as the longest request would need."""
        return self.shape.request_bytes(self.kv_dtype, self.reserved_context)

    @property
    def _paged_context(self) -> int:
        return -(-self.context // BLOCK) * BLOCK

    # -- what fits ------------------------------------------------------------------------------------------------

    @property
    def usable_bytes(self) -> int | None:
        """Of one accelerator."""
        return None if self.accelerator is None else int(self.accelerator.memory * self.utilization)

    def bytes_per_accelerator(self, context: int, concurrency: int) -> int:
        """What `concurrency` requests of `context` tokens take on each accelerator, with weights and activations."""
        request = self.shape.request_bytes_on(self.kv_dtype, context, self.accelerators) + self._logits_bytes
        return self._fixed_bytes + concurrency * request

    @property
    def _fixed_bytes(self) -> int:
        return (
            -(-self.weights_bytes // self.accelerators) + self.activations_bytes - self.concurrency * self._logits_bytes
        )

    @property
    def fits(self) -> bool | None:
        """Whether the asked number of requests fits; None without an accelerator."""
        room = self.max_concurrency
        return None if room is None else self.concurrency <= room

    @property
    def max_concurrency(self) -> int | None:
        """How many requests of this length fit at once, paged; None without an accelerator."""
        return self._room_for(self._paged_context)

    @property
    def max_concurrency_contiguous(self) -> int | None:
        """How many fit if each has room set aside for `reserved_context` tokens."""
        return self._room_for(self.reserved_context)

    def _room_for(self, context: int) -> int | None:
        if self.usable_bytes is None:
            return None
        request = self.shape.request_bytes_on(self.kv_dtype, context, self.accelerators) + self._logits_bytes
        return max(0, (self.usable_bytes - self._fixed_bytes) // request)

    # -- what has to be said --------------------------------------------------------------------------------------

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is probably not meant."""
        found = []
        limit = self.shape.context_length
        if self.context > limit:
            found.append(
                f"A context of {self.context} is beyond the {limit} tokens that {self.shape.name} was made for."
            )
        shared = {run.mixer.copies for run in self.shape.layers if not isinstance(run.mixer, Recurrent)}
        if self.accelerators > 1 and any(isinstance(run.mixer, LatentAttention) for run in self.shape.layers):
            found.append(
                f"Each of the {self.accelerators} accelerators keeps all of the latent vectors, because each has heads"
                " that need them. Engines that give whole requests to one accelerator each are not worked out here."
            )
        elif uneven := sorted(each for each in shared if each % self.accelerators):
            found.append(
                f"{uneven[0]} KV heads do not divide between {self.accelerators} accelerators: some keep the same keys"
                " and values, or more of them than others."
            )
        return tuple(found)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the numbers rest on."""
        shape = self.shape
        dtype = self.weight_dtype or ("as in the file" if shape.file_bytes is not None else shape.weight_dtype)
        found = [
            f"Weights: {shape.parameters:,} parameters, {dtype}. Heads for multi-token prediction are not counted.",
            f"Keys and values: {self.kv_dtype}, in blocks of {BLOCK} tokens.",
            f"Activations: an estimate, for steps of {min(self.step_tokens, self.context * self.concurrency)} tokens.",
            *shape.notes,
        ]
        if self.kv_dtype in ("fp8", "int8", "int4"):
            found.append(f"Scales of {self.kv_dtype} keys and values, which differ by engine, are not counted.")
        if shape.windows:
            full = self.shape_without_windows_bytes
            found.append(
                f"Layers with a window keep its last {', '.join(map(str, shape.windows))} tokens only; an engine that"
                f" keeps everything in all layers needs {full:,} bytes for such a request."
            )
        if shape.state_bytes:
            found.append(
                f"Recurrent states in float32, convolution inputs in 16 bits: {shape.state_bytes:,} bytes a request at"
                " any length. Every point to which a prefix can be reused needs a copy of them."
            )
        if self.accelerator is not None:
            found.append(
                f"{self.utilization:.0%} of {self.accelerator.memory:,} bytes may be used"
                f" ({self.accelerator.source}); a GB is 10^9 bytes."
            )
        return tuple(found)

    @property
    def shape_without_windows_bytes(self) -> int:
        """One request's bytes if no layer forgot what is outside its window."""
        per_token = self.shape.kv_bytes_per_token(self.kv_dtype)
        return per_token * self.context + self.shape.state_bytes
