"""The few machine operations that the step loop needs and Numba does not offer."""

from __future__ import annotations

import ctypes
import os

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_I64 = ir.IntType(64)


@intrinsic
def call(typingctx, address, args):
    """Call the C function `void f(int64, ...)` at `address` with a tuple of integers."""

    def codegen(context, builder, signature, values):
        target, packed = values
        arguments = [
            builder.sext(v, _I64) if v.type.width < 64 else v for v in cgutils.unpack_tuple(builder, packed)
        ]
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


def yield_address() -> int:
    """The address of a C function that gives the rest of this thread's time slice to others."""
    library, name = (ctypes.windll.kernel32, "SwitchToThread") if os.name == "nt" else (ctypes.CDLL(None), "sched_yield")
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
