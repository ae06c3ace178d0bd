"""Which kernel serves what: names, and the addresses they were built at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvledger.model.kernels import amx, attention, attention_pairs, linear, rows
from kvledger.model.kernels.attention import BLOCK, Tile
from kvledger.model.kernels.cpu import Isa
from kvledger.model.kernels.emit import Emit, Value
from kvledger.model.kernels.jit import address_of
from kvledger.model.kernels.panels import PanelFormat
from kvledger.model.kernels.plain import PlainKernels
from kvledger.model.kernels.rows import HeadShape


@dataclass(frozen=True)
class KernelTable:
    """Addresses of kernels for one x86 instruction set; each is compiled, or read from disk, when first asked for."""

    isa: Isa

    def linear(self, format_: PanelFormat, int8: bool, add: bool) -> int:
        name = f"linear_{format_.name}_{_kind(int8)}{'_add' if add else ''}"
        return self._get(name, 6, lambda e, args: linear.emit_linear(e, format_, int8, add, args))

    def embed(self, format_: PanelFormat) -> int:
        return self._get(f"embed_{format_.name}", 5, lambda e, args: linear.emit_embed(e, format_, args))

    def norm(self, eps: float, int8: bool) -> int:
        return self._get(f"norm_{_number(eps)}_{_kind(int8)}", 5, lambda e, args: rows.emit_norm(e, eps, int8, args))

    def norm_twice(self, eps: float) -> int:
        return self._get(f"norm_{_number(eps)}_twice", 6, lambda e, args: rows.emit_norm_twice(e, eps, args))

    def quantise(self, int8: bool) -> int:
        return self._get(f"quantise_{_kind(int8)}", 4, lambda e, args: rows.emit_quantise(e, int8, args))

    def gate(self, int8: bool) -> int:
        return self._get(f"gate_{_kind(int8)}", 6, lambda e, args: rows.emit_gate(e, int8, args))

    def rotate(self, shape: HeadShape, eps: float, bias: bool, qk_norm: bool) -> int:
        name = f"rotate_{shape.name}{'_bias' if bias else ''}{f'_norm_{_number(eps)}' if qk_norm else ''}"
        return self._get(name, 11, lambda e, args: rows.emit_rotate(e, shape, BLOCK, eps, bias, qk_norm, args))

    def attend(self, tile: Tile) -> int:
        arithmetic = attention_pairs if tile.shape.kv_dtype == "bf16" else attention
        return self._get(f"attend_{_tile(tile)}", 7, lambda e, args: arithmetic.emit_attend(e, tile, args))

    def merge(self, tile: Tile) -> int:
        return self._get(f"merge_{_tile(tile)}", 2, lambda e, args: attention.emit_merge(e, tile, args))

    def finish(self, tile: Tile) -> int:
        return self._get(f"finish_{_tile(tile)}", 3, lambda e, args: attention.emit_finish(e, tile, args))

    def begin(self) -> int:
        """What a thread calls before it uses other kernels; 0 for nothing."""
        return self._get("begin", 0, amx.emit_begin) if self.isa is Isa.AMX else 0

    def end(self) -> int:
        """What a thread calls when it is done; 0 for nothing."""
        return self._get("end", 0, amx.emit_end) if self.isa is Isa.AMX else 0

    def _get(self, name: str, num_args: int, build: Callable[[Emit, list[Value]], None]) -> int:
        return address_of(name, num_args, build, self.isa)


def kernels_for(isa: Isa) -> KernelTable | PlainKernels:
    """The kernels for an instruction set, which this processor must have."""
    return PlainKernels() if isa is Isa.PLAIN else KernelTable(isa)


def _kind(int8: bool) -> str:
    return "int8" if int8 else "f32"


def _number(value: float) -> str:
    return repr(value).replace(".", "p").replace("-", "m").replace("+", "")


def _tile(tile: Tile) -> str:
    return f"{tile.shape.name}_{tile.tokens}"
