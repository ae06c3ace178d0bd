"""What an accelerator needs for a token, by the roofline (Williams, Waterman and Patterson, 2009): whichever takes
longer, the arithmetic at the peak rate or the bytes at the peak bandwidth. Peaks are never reached, so that these
times and costs are floors; `efficiency` scales both peaks by the share that somebody has measured.

Several accelerators count as one with the sum of their peaks: what they say to each other is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Literal

from kvledger.errors import PlanError
from kvledger.plan.catalog import Accelerator
from kvledger.plan.memory import MemoryPlan
from kvledger.plan.shape import ModelShape

_MOST_BATCH = 1 << 20
_SIX_DIGITS = Context(prec=6)


MOST_PER_HOUR = 1_000_000
"""No accelerator costs as much, in any currency."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Work that is done together: operations (a multiply-add is two), bytes moved, and the seconds each would take."""

    flops: int
    bytes: int
    compute_seconds: float
    memory_seconds: float

    @property
    def seconds(self) -> float:
        """The longer of the two."""
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """What it waits for."""
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    @property
    def intensity(self) -> float:
        """Operations per byte moved."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class GpuPlan:
    """A model on an accelerator. Prompts have `context` tokens, of which `cached` may be in the cache; answers are
    decoded behind as many, `batch` at a time (None: as many as fit). `price_per_hour` is of one accelerator.
    """

    memory: MemoryPlan
    price_per_hour: Decimal | None = None
    cached: int | None = None
    batch: int | None = None
    efficiency: float = 1.0

    def __post_init__(self) -> None:
        if self.memory.accelerator is None:
            raise PlanError("A roofline needs an accelerator: give --gpu.")
        if not 0 < self.efficiency <= 1:
            raise PlanError(f"--efficiency is {self.efficiency}: a share of the peaks above 0, up to 1, is needed.")
        if self.price_per_hour is not None and not (
            self.price_per_hour.is_finite() and 0 < self.price_per_hour <= MOST_PER_HOUR
        ):
            raise PlanError(
                f"--price-per-hour is {self.price_per_hour}: an amount above zero, up to {MOST_PER_HOUR:,}, is needed."
            )
        if self.cached is not None and not 1 <= self.cached < self.memory.context:
            raise PlanError(
                f"--cached is {self.cached}: 1 or more is needed, and less than the {self.memory.context} tokens of"
                " the prompt, whose last token is always computed."
            )
        if self.cached is None and self.memory.context < 2:
            raise PlanError("--context is 1: a prompt of which something can be cached has 2 tokens or more.")
        if self.batch is not None and self.batch < 1:
            raise PlanError(f"--batch is {self.batch}: 1 or more is needed.")
        if not self.memory.max_concurrency:
            raise PlanError(
                f"{self.shape.name} with one request of {self.memory.context} tokens does not fit on"
                f" {self.memory.accelerators} x {self.accelerator.name}: give more with --gpus, or smaller weights with"
                " --weight-dtype."
            )
        if self.batch is not None and self.batch > self.largest_batch:
            raise PlanError(
                f"--batch is {self.batch}: {self.largest_batch} requests of {self.memory.context} tokens are the most"
                " that fit; give more with --gpus, or a shorter --context."
            )

    @property
    def shape(self) -> ModelShape:
        return self.memory.shape

    @property
    def accelerator(self) -> Accelerator:
        assert self.memory.accelerator is not None
        return self.memory.accelerator

    @property
    def largest_batch(self) -> int:
        """How many requests of this length the memory holds."""
        room = self.memory.max_concurrency
        assert room
        return room

    @property
    def decode_batch(self) -> int:
        """The batch that costs are worked out for."""
        return self.batch or self.largest_batch

    @property
    def cached_tokens(self) -> int:
        """Nine tenths of the prompt, unless said otherwise."""
        return self.cached or max(1, self.memory.context * 9 // 10)

    # -- peaks ----------------------------------------------------------------------------------------------------

    @property
    def arithmetic(self) -> str:
        """The data type of the matrix products: that of the weights, where the accelerator multiplies it faster."""
        dtype = self.memory.weight_dtype or self.shape.weight_dtype
        if dtype in ("fp8", "int8") and dtype in self.accelerator.flops and self.shape.file_bytes is None:
            return dtype
        return "bf16" if "bf16" in self.accelerator.flops else "fp16"

    @property
    def peak_flops(self) -> float:
        """Operations per second, all accelerators together."""
        return self.accelerator.flops[self.arithmetic] * self.memory.accelerators * self.efficiency

    @property
    def bandwidth(self) -> float:
        """Bytes per second, all accelerators together."""
        return self.accelerator.bandwidth * self.memory.accelerators * self.efficiency

    @property
    def ridge(self) -> float:
        """Operations per byte from which on arithmetic is what takes longer."""
        return self.peak_flops / self.bandwidth

    # -- phases ---------------------------------------------------------------------------------------------------

    def prefill(self, fresh: int, cached: int = 0) -> Phase:
        """Computing `fresh` tokens of a prompt behind `cached` ones, in steps of at most `step_tokens`.

        Every step reads the weights and the keys and values before it; the output is computed for the last token only.
        """
        shape, step = self.shape, self.memory.step_tokens
        output = shape.vocab_size * shape.hidden_size
        multiply_adds = fresh * (shape.matmul_parameters - output) + output
        for run in shape.layers:
            window = getattr(run.mixer, "window", None)
            multiply_adds += run.count * run.mixer.prefill_width * _visible(fresh, cached, window)
            multiply_adds += run.count * fresh * (run.mixer.multiply_adds(0))
        moved = self._kept(cached + fresh) - self._kept(cached)
        for start in range(0, fresh, step):
            moved += shape.step_bytes(self.memory.weight_dtype, min(step, fresh - start)) + self._kept(cached + start)
        return self._phase(2 * multiply_adds, moved)

    def decode(self, batch: int) -> Phase:
        """One step of `batch` requests of this length: every weight that is used is read once for all of them, keys,
        values and states once for each."""
        shape, context = self.shape, self.memory.context
        multiply_adds = shape.matmul_parameters
        multiply_adds += sum(run.count * run.mixer.multiply_adds(context) for run in shape.layers)
        moved = shape.step_bytes(self.memory.weight_dtype, batch)
        moved += batch * (self._kept(context) + shape.state_bytes)  # states are written back as well
        return self._phase(2 * multiply_adds * batch, moved)

    def _kept(self, context: int) -> int:
        """What a request of `context` tokens keeps, copies on several accelerators included; nothing of no tokens."""
        if context == 0:
            return 0
        memory = self.memory
        if memory.accelerators == 1:
            return self.shape.request_bytes(memory.kv_dtype, context)
        return memory.accelerators * self.shape.request_bytes_on(memory.kv_dtype, context, memory.accelerators)

    def _phase(self, flops: int, moved: int) -> Phase:
        return Phase(flops, moved, flops / self.peak_flops, moved / self.bandwidth)

    @property
    def critical_batch(self) -> int | None:
        """The smallest batch at which a decode step waits for arithmetic; None if none does: then reading one
        request's keys and values takes longer than the arithmetic of its token."""
        low, high = 0, 1
        while self.decode(high).bound == "memory":
            low, high = high, 2 * high
            if high > _MOST_BATCH:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.decode(middle).bound == "memory" else (low, middle)
        return high

    # -- seconds and money ----------------------------------------------------------------------------------------

    @property
    def input_seconds(self) -> float:
        """Per token of a prompt of which nothing is cached."""
        return self.prefill(self.memory.context).seconds / self.memory.context

    @property
    def cached_seconds(self) -> float:
        """Per cached token: what the fresh ones take longer because they have to look at it."""
        cached = self.cached_tokens
        fresh = self.memory.context - cached
        return (self.prefill(fresh, cached).seconds - self.prefill(fresh).seconds) / cached

    def output_seconds(self, batch: int) -> float:
        """Per token of an answer, `batch` of which are decoded together."""
        return self.decode(batch).seconds / batch

    def cost(self, seconds: float) -> Decimal | None:
        """Of a million tokens that take `seconds` each; None without a price. Six digits."""
        if self.price_per_hour is None:
            return None
        hours = Decimal(seconds) * 1_000_000 / 3600
        return _SIX_DIGITS.create_decimal(self.price_per_hour * self.memory.accelerators * hours)

    def batches(self) -> Iterator[int]:
        """Powers of two up to the largest that fits, and that."""
        batch = 1
        while batch < self.largest_batch:
            yield batch
            batch *= 2
        yield self.largest_batch


def _visible(fresh: int, cached: int, window: int | None) -> int:
    """How many tokens the `fresh` ones after `cached` see, itself included, added up."""
    if window is None or cached + fresh <= window:
        return fresh * cached + fresh * (fresh + 1) // 2
    growing = max(0, window - cached)  # of the fresh tokens, those that still see everything
    return growing * cached + growing * (growing + 1) // 2 + (fresh - growing) * window
