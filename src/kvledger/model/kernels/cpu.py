"""What this processor can do, as far as the kernels care."""

from __future__ import annotations

import ctypes
import os
import platform
from enum import Enum
from functools import cache

import llvmlite.binding as llvm


class Isa(Enum):
    """Instruction sets with kernels of their own, weakest first."""

    PLAIN = "plain"
    """No assumption: the plain Numba twins."""
    AVX2 = "avx2"
    """AVX2, FMA and F16C."""
    AVX512 = "avx512"
    """AVX-512 with byte dot products (VNNI)."""
    AMX = "amx"
    """AVX-512 as above, and tile multiplication: int8 for many tokens at once, bf16 for attention."""


@cache
def features() -> frozenset[str]:
    """LLVM's names of the features that this processor and operating system offer."""
    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@cache
def best_isa() -> Isa:
    """The strongest instruction set that can be used in this process."""
    have = features()
    if platform.machine().lower() not in {"x86_64", "amd64"}:
        return Isa.PLAIN
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni", "f16c"} <= have:
        if {"amx-tile", "amx-int8", "amx-bf16"} <= have and _amx_permitted():
            return Isa.AMX
        return Isa.AVX512
    if {"avx2", "fma", "f16c"} <= have:
        return Isa.AVX2
    return Isa.PLAIN


def _amx_permitted() -> bool:
    """Ask Linux for the tile registers, which it hands out per process on request (arch_prctl(2))."""
    if platform.system() != "Linux":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(arch_prctl, request_permission, tile_data) == 0)


def num_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
