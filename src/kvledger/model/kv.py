"""The paged pool of keys and values: one array of blocks, each holding 16 positions of every layer and KV head.

A block is contiguous: `[layer][kv_head][keys | values | scales]`, with keys transposed (`[head_dim][16]`), values as
rows (`[16][head_dim]`), and for int8 a float32 scale per token for keys and for values; bf16 lies in pairs, as
`kernels/attention_pairs.py` says. Who owns which block is not known here; that is the prompt cache's business.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import InvalidRequestError
from kvledger.model.config import ModelConfig
from kvledger.model.kernels.attention import BLOCK
from kvledger.model.kernels.attention_pairs import HEAD_UNIT
from kvledger.model.kernels.cpu import Isa, best_isa
from kvledger.model.kernels.panels import aligned
from kvledger.model.kernels.rows import HeadShape

KVDtype = Literal["f16", "bf16", "f32", "int8"]
DTYPES: tuple[KVDtype, ...] = get_args(KVDtype)


def default_dtype(config: ModelConfig, mode: str) -> KVDtype:
    """f16; but bf16, which takes as much memory, where the processor multiplies it in tiles and `mode` is "fast".

    It rounds keys and values to 8 bits instead of 11, and attention is computed two to three times as fast.
    """
    return "bf16" if mode == "fast" and best_isa() is Isa.AMX and config.head_dim % HEAD_UNIT == 0 else "f16"


class KVPool:
    """`num_blocks` blocks of `block_size` positions. Memory is taken from the system as blocks are first written."""

    block_size = BLOCK

    def __init__(self, config: ModelConfig, num_blocks: int, dtype: str = "f16") -> None:
        self.dtype = dtype
        self.num_blocks = num_blocks
        self.head_bytes = head_shape(config, dtype).head_bytes(BLOCK)
        self.layer_bytes = self.head_bytes * config.num_kv_heads
        self.bytes_per_block = self.layer_bytes * config.num_layers
        # Never-written slots are read by the kernels behind the causal mask, so they must be finite: zeros.
        self.data: NDArray[np.uint8] = aligned((num_blocks, self.bytes_per_block), np.uint8)

    def copy_block(self, source: int, target: int) -> None:
        """Make block `target` equal to block `source`."""
        self.data[target] = self.data[source]

    def read_block(self, block: int) -> bytes:
        """The bytes of a block, as `write_block` takes them."""
        return bytes(self.data[block])

    def write_block(self, block: int, content: bytes) -> None:
        """Restore a block; raises `ValueError` if `content` has the wrong size."""
        if len(content) != self.bytes_per_block:
            raise ValueError(f"a block has {self.bytes_per_block} bytes, not {len(content)}")
        self.data[block] = np.frombuffer(content, np.uint8)


def head_shape(config: ModelConfig, dtype: str) -> HeadShape:
    """The attention shape of a model with KV stored as `dtype`; raises `InvalidRequestError` if it cannot be."""
    if dtype not in DTYPES:
        raise InvalidRequestError(f"KV dtype {dtype!r} is not known: use one of {', '.join(DTYPES)}.", param="kv_dtype")
    if dtype == "bf16" and config.head_dim % HEAD_UNIT:
        raise InvalidRequestError(
            f"KV dtype bf16 needs heads of a multiple of {HEAD_UNIT} elements, and this model's have {config.head_dim}:"
            " use f16.",
            param="kv_dtype",
        )
    return HeadShape(config.num_heads, config.num_kv_heads, config.head_dim, dtype)


def bytes_per_block(config: ModelConfig, dtype: str) -> int:
    """Bytes that one block of 16 positions takes in a pool."""
    return head_shape(config, dtype).head_bytes(BLOCK) * config.num_kv_heads * config.num_layers
