"""The memory that steps work in, kept between steps and grown when a larger one comes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.model.kernels import step
from kvledger.model.kernels.activations import TOKENS
from kvledger.model.kernels.attention import partial_bytes, score_bytes
from kvledger.model.kernels.panels import ROWS, aligned
from kvledger.model.kernels.rows import HeadShape


class Workspace:
    """Buffers for one model. `logits` is float32 [rows, padded vocabulary], valid until the next step."""

    def __init__(self, shape: HeadShape, *, num_layers: int, hidden: int, ffn: int, logits: int, threads: int) -> None:
        self._shape = shape
        self._threads = threads
        q_size, kv_size = (heads * shape.head_dim for heads in (shape.num_heads, shape.num_kv_heads))
        self._k_offset = 4 * _padded(q_size)
        self._v_offset = self._k_offset + 4 * _padded(kv_size)
        self._widths = {
            "x": 4 * _padded(hidden),
            "rows": 4 * max(hidden, q_size),
            "ffn_rows": 4 * ffn,
            "qkv": self._v_offset + 4 * _padded(kv_size),
            "queries": 4 * q_size,
            "attended": 4 * q_size,
        }
        self._memory: dict[str, NDArray[np.uint8]] = {}
        self._capacity = 0
        self.logits = aligned((1, logits), np.float32)
        self._partials = aligned((1, partial_bytes(shape.head_dim)), np.uint8)
        # Per thread: scores or gates (never both at once), then two partials.
        self._partial_offset = max(score_bytes(), step.GATE_TOKENS * 256)
        scratch = self._partial_offset + 2 * partial_bytes(shape.head_dim)
        self._scratch = aligned((threads, (scratch + 4095) // 4096 * 4096), np.uint8)
        num_counters = 1 + (num_layers + 1) * step.COUNTERS
        self._counters = aligned((num_counters * step.COUNTER_BYTES // 8,), np.int64)

    def fresh_counters(self) -> NDArray[np.int64]:
        """The barrier and work counters of a step, all zero."""
        self._counters[:] = 0
        return self._counters

    def buffers(self, tokens: int, logits: int, partials: int) -> np.void:
        """A `step.BUFFERS` record with room for so many tokens, rows of logits, and partial results per KV head."""
        grown = False
        if tokens > self._capacity:
            self._capacity = (max(tokens, 2 * self._capacity) + TOKENS - 1) // TOKENS * TOKENS
            self._memory = {name: aligned((self._capacity, width), np.uint8) for name, width in self._widths.items()}
            grown = True
        if logits > len(self.logits):
            self.logits = aligned((logits, self.logits.shape[1]), np.float32)
            grown = True
        if partials * self._shape.num_kv_heads > len(self._partials):
            self._partials = aligned((partials * self._shape.num_kv_heads, self._partials.shape[1]), np.uint8)
            grown = True
        if grown:
            self._record = self._addresses()
        return self._record

    def _addresses(self) -> np.void:
        address = {name: array.ctypes.data for name, array in self._memory.items()}
        return step.filled(
            step.BUFFERS,
            x=address["x"],
            x_stride=self._widths["x"],
            rows=address["rows"],
            ffn_rows=address["ffn_rows"],
            qkv=address["qkv"],
            qkv_stride=self._widths["qkv"],
            k_offset=self._k_offset,
            v_offset=self._v_offset,
            queries=address["queries"],
            query_stride=4 * self._capacity * self._shape.group * self._shape.head_dim,
            attended=address["attended"],
            attended_stride=self._widths["attended"],
            scratch=self._scratch.ctypes.data,
            scratch_stride=self._scratch.shape[1],
            partial_offset=self._partial_offset,
            partial_bytes=self._partials.shape[1],
            partials=self._partials.ctypes.data,
            logits=self.logits.ctypes.data,
            logit_stride=self.logits.strides[0],
        )


def _padded(columns: int) -> int:
    """Columns rounded up to whole panels, since a panel always writes 16."""
    return (columns + ROWS - 1) // ROWS * ROWS
