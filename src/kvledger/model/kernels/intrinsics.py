"""The few machine operations that the step loop and the plain kernels need and Numba does not offer."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32 = ir.FloatType()


@intrinsic
def call(typingctx, address, args):
    """Call the C function `void f(int64, ...)` at `address` with a tuple of integers."""

    def codegen(context, builder, signature, values):
        target, packed = values
        arguments = [builder.sext(v, _I64) if v.type.width < 64 else v for v in cgutils.unpack_tuple(builder, packed)]
        function_type = ir.FunctionType(ir.VoidType(), [_I64] * len(arguments))
        builder.call(builder.inttoptr(target, function_type.as_pointer()), arguments)
        return context.get_dummy_value()

    return types.none(types.int64, args), codegen


@intrinsic
def fetch_add(typingctx, address, amount):
    """Add to the int64 at `address`, atomically; returns the value before."""

    def codegen(context, builder, signature, values):
        return builder.atomic_rmw("add", builder.inttoptr(values[0], _I64.as_pointer()), values[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """The int64 at `address`, together with everything written before it was."""

    def codegen(context, builder, signature, values):
        return builder.load_atomic(builder.inttoptr(values[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def relax(typingctx):
    """Tell the processor that this is a waiting loop (x86 `pause`); nothing elsewhere."""

    def codegen(context, builder, signature, values):
        if builder.module.triple.startswith(("x86_64", "amd64")):
            pause = builder.module.globals.get("llvm.x86.sse2.pause") or ir.Function(
                builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.x86.sse2.pause"
            )
            builder.call(pause, [])
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def cycles(typingctx):
    """A clock of the processor, a few per nanosecond, on x86; 0 elsewhere, where reading one may be forbidden."""

    def codegen(context, builder, signature, values):
        if not builder.module.triple.startswith(("x86_64", "amd64")):
            return ir.Constant(_I64, 0)
        counter = builder.module.globals.get("llvm.readcyclecounter") or ir.Function(
            builder.module, ir.FunctionType(_I64, []), "llvm.readcyclecounter"
        )
        return builder.call(counter, [])

    return types.int64(), codegen


def yield_address() -> int:
    """The address of a C function that gives the rest of this thread's time slice to others."""
    library, name = (
        (ctypes.windll.kernel32, "SwitchToThread") if os.name == "nt" else (ctypes.CDLL(None), "sched_yield")
    )
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0


# -- numbers in memory, for the plain kernels --------------------------------------------------------------------------


def _peek(stored: ir.Type, result: types.Type, widen: str = "") -> Any:
    """peek(address): the number stored there, which need not be aligned; integers become int64."""

    @intrinsic
    def peek(typingctx, address):
        def codegen(context, builder, signature, values):
            value = builder.load(builder.inttoptr(values[0], stored.as_pointer()), align=1, typ=stored)
            return getattr(builder, widen)(value, _I64) if widen else value

        return result(types.int64), codegen

    return peek


def _poke(stored: ir.Type, given: types.Type) -> Any:
    """poke(address, value): store the number; of integers, the low bits."""

    @intrinsic
    def poke(typingctx, address, value):
        def codegen(context, builder, signature, values):
            number = values[1] if stored is _F32 else builder.trunc(values[1], stored)
            builder.store(number, builder.inttoptr(values[0], stored.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(types.int64, given), codegen

    return poke


@intrinsic
def _fma(typingctx, a, b, c):
    """a * b + c in float32, rounded once."""

    def codegen(context, builder, signature, values):
        return builder.fma(*values)

    return types.float32(types.float32, types.float32, types.float32), codegen


@intrinsic
def _bits_of(typingctx, number):
    """The 32 bits of a float32, as an int64 that is not negative."""

    def codegen(context, builder, signature, values):
        return builder.zext(builder.bitcast(values[0], _I32), _I64)

    return types.int64(types.float32), codegen


@intrinsic
def _float_of(typingctx, bits):
    """The float32 that the low 32 bits stand for."""

    def codegen(context, builder, signature, values):
        return builder.bitcast(builder.trunc(values[0], _I32), _F32)

    return types.float32(types.int64), codegen


Peek = Callable[[int], int]
Poke = Callable[[int, int], None]
PeekFloat = Callable[[int], np.float32]
PokeFloat = Callable[[int, np.float32], None]

peek_i8: Peek = _peek(_I8, types.int64, "sext")
peek_u8: Peek = _peek(_I8, types.int64, "zext")
peek_u16: Peek = _peek(_I16, types.int64, "zext")
peek_i32: Peek = _peek(_I32, types.int64, "sext")
peek_f32: PeekFloat = _peek(_F32, types.float32)
poke_i8: Poke = _poke(_I8, types.int64)
poke_u16: Poke = _poke(_I16, types.int64)
poke_i32: Poke = _poke(_I32, types.int64)
poke_f32: PokeFloat = _poke(_F32, types.float32)
fma: Callable[[np.float32, np.float32, np.float32], np.float32] = _fma
bits_of: Callable[[np.float32], int] = _bits_of
float_of: Callable[[int], np.float32] = _float_of
