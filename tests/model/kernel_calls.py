"""What the tests of the kernels share: calling one by its address, and activation rows made with NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from kvledger.model.kernels.activations import TOKENS, tile_bytes
from kvledger.model.kernels.cpu import Isa, best_isa
from kvledger.model.kernels.panels import GROUP, aligned
from kvledger.model.kernels.plain import PlainKernels
from kvledger.model.kernels.table import KernelTable, kernels_for

ISAS = list(Isa)[: list(Isa).index(best_isa()) + 1]
"""All that this processor can run, the plain twins first."""

VECTOR_ISAS = [isa for isa in ISAS if isa is not Isa.AMX]
"""`ISAS` without AMX, whose kernels are those of AVX-512 but for the linear ones and attention on bf16."""

f32 = np.float32


class Calls:
    """Calls kernels of one instruction set as a thread of a step does: `begin` first, `end` last."""

    def __init__(self, isa: Isa) -> None:
        self.kernels: KernelTable | PlainKernels = kernels_for(isa)

    def __call__(self, address: int, *args: int | NDArray) -> None:
        for function, values in ((self.kernels.begin(), ()), (address, args), (self.kernels.end(), ())):
            if function:
                prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(values))
                prototype(function)(*(v.ctypes.data if isinstance(v, np.ndarray) else v for v in values))


def quantised(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quants [..., n] and scales [...] of rows of n numbers, as the kernels round them."""
    peak = np.abs(x).max(axis=-1)
    inverse = np.divide(f32(127), peak, out=np.zeros_like(peak), where=peak >= f32(1e-36))
    return np.rint(x * inverse[..., None]).astype(np.int8), peak * f32(1 / 127)


def bf16_bits(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """`x` rounded to bf16, to the even one of two."""
    bits = x.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(f32)


def int8_rows(x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Tiles that hold the rows of `x` [tokens, cols] in int8, and the values they stand for."""
    tokens, cols = x.shape
    groups, num_tiles = cols // GROUP, -(-tokens // TOKENS)
    quants, scales = quantised(x.reshape(tokens, groups, GROUP))
    sums = quants.sum(axis=-1, dtype=np.int32)
    tiles = aligned((num_tiles, tile_bytes(cols, True)), np.uint8)
    for token in range(tokens):
        tile, lane, at = tiles[token // TOKENS], token % TOKENS, TOKENS * cols
        tile[:at].view(np.int8).reshape(groups, TOKENS, GROUP)[:, lane] = quants[token]
        for part in (scales[token], -sums[token], scales[token] * sums[token].astype(f32)):
            tile[at : at + 4 * TOKENS * groups].view(part.dtype).reshape(groups, TOKENS)[:, lane] = part
            at += 4 * TOKENS * groups
    return tiles, (quants * scales[..., None].astype(np.float64)).reshape(tokens, cols)


def f32_rows(x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """As `int8_rows`, in float32."""
    tokens, cols = x.shape
    tiles = aligned((-(-tokens // TOKENS) * TOKENS, cols), f32)
    tiles[:tokens] = x
    return tiles.view(np.uint8), x.astype(np.float64)


def same_bits(a: NDArray, b: NDArray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()
