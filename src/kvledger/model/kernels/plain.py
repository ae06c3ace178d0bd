"""The kernels in plain Numba loops, for any processor: what each one computes, and what tests hold the others to."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.model.kernels import plain_attention, plain_linear, plain_pairs, plain_rows
from kvledger.model.kernels.attention import Tile
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.panels import PanelFormat
from kvledger.model.kernels.rows import HeadShape


@dataclass(frozen=True)
class PlainKernels:
    """Addresses of the plain kernels; each is compiled, or read from disk, when first asked for. As `KernelTable`."""

    isa: Isa = Isa.PLAIN

    def linear(self, format_: PanelFormat, int8: bool, add: bool) -> int:
        return plain_linear.linear(format_, int8, add)

    def embed(self, format_: PanelFormat) -> int:
        return plain_linear.embed(format_)

    def norm(self, eps: float, int8: bool) -> int:
        return plain_rows.norm(eps, int8)

    def norm_twice(self, eps: float) -> int:
        return plain_rows.norm_twice(eps)

    def quantise(self, int8: bool) -> int:
        return plain_rows.quantise(int8)

    def gate(self, int8: bool) -> int:
        return plain_rows.gate(int8)

    def rotate(self, shape: HeadShape, eps: float, bias: bool, qk_norm: bool) -> int:
        return plain_rows.rotate(shape, eps, bias, qk_norm)

    def attend(self, tile: Tile) -> int:
        return plain_pairs.attend(tile) if tile.shape.kv_dtype == "bf16" else plain_attention.attend(tile)

    def merge(self, tile: Tile) -> int:
        return plain_attention.merge(tile)

    def finish(self, tile: Tile) -> int:
        return plain_attention.finish(tile)

    def begin(self) -> int:
        return 0

    def end(self) -> int:
        return 0
