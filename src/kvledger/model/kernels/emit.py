"""A thin vocabulary over an LLVM IR builder: addresses are 64-bit integers, vectors are values.

Every operation has one fixed rounding (no fast-math flags), and sums over lanes use one fixed tree, so the code that
LLVM makes of it gives the same bits on every processor and in every build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from llvmlite import ir

from kvledger.model.kernels.cpu import Isa

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
VOID = ir.VoidType()


class _Bfloat(ir.Type):
    """LLVM's type for bf16, which llvmlite does not have."""

    def _to_string(self) -> str:
        return "bfloat"


Value: TypeAlias = Any
"""An `ir.Value`; llvmlite carries no types."""


def vec(element: ir.Type, lanes: int) -> ir.VectorType:
    """The vector type of `lanes` elements."""
    return ir.VectorType(element, lanes)


class Emit:
    """Emits instructions into the function being built. `isa` decides between instruction sequences of equal result."""

    def __init__(self, function: ir.Function, isa: Isa) -> None:
        self.isa = isa
        self.module = function.module
        self.function = function
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self._allocas = function.entry_basic_block

    # -- constants and addresses ----------------------------------------------------------------------------------

    def i64(self, value: int) -> Value:
        return ir.Constant(I64, value)

    def const(self, type_: ir.Type, value: float) -> Value:
        """`value` in every lane of `type_`."""
        if isinstance(type_, ir.VectorType):
            return ir.Constant(type_, [ir.Constant(type_.element, value)] * type_.count)
        return ir.Constant(type_, value)

    def zero(self, type_: ir.Type) -> Value:
        """0.0 in every lane of `type_`."""
        return self.const(type_, 0.0)

    def const_bytes(self, value: int, count: int = 64) -> Value:
        """`count` bytes of `value`."""
        return ir.Constant(vec(I8, count), [value] * count)

    def at(self, address: Value, *offsets: Value | int) -> Value:
        """`address` plus offsets in bytes."""
        for offset in offsets:
            if isinstance(offset, int):
                if offset:
                    address = self.b.add(address, self.i64(offset))
            else:
                address = self.b.add(address, offset)
        return address

    def times(self, value: Value, factor: int) -> Value:
        return self.b.mul(value, self.i64(factor))

    # -- memory -----------------------------------------------------------------------------------------------------

    def load(self, address: Value, type_: ir.Type, align: int = 1) -> Value:
        return self.b.load(self.b.inttoptr(address, type_.as_pointer()), align=align, typ=type_)

    def store(self, value: Value, address: Value, align: int = 1) -> None:
        self.b.store(value, self.b.inttoptr(address, value.type.as_pointer()), align=align)

    def load_f32(self, address: Value, lanes: int, stored: ir.Type = F32) -> Value:
        """`lanes` numbers stored as f32, f16, bf16 (given as i16) or i8, as a vector of f32."""
        raw = self.load(address, vec(stored, lanes))
        wide = vec(F32, lanes)
        if stored is F32:
            return raw
        if stored is F16:
            return self.b.fpext(raw, wide)
        if stored is I8:
            return self.b.sitofp(self.b.sext(raw, vec(I32, lanes)), wide)
        assert stored is I16
        bits = self.b.shl(self.b.zext(raw, vec(I32, lanes)), self.const(vec(I32, lanes), 16))
        return self.b.bitcast(bits, wide)

    def broadcast(self, address: Value, element: ir.Type, lanes: int) -> Value:
        """The element at `address` in every lane."""
        return self.splat(self.load(address, element), lanes)

    def splat(self, scalar: Value, lanes: int) -> Value:
        undefined = ir.Constant(vec(scalar.type, lanes), ir.Undefined)
        first = self.b.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(vec(I32, lanes), [0] * lanes))

    def prefetch(self, address: Value, locality: int = 3) -> None:
        """Ask for a cache line ahead of its use: into the first-level cache (3), or only into the second (2)."""
        pointer = I8.as_pointer()
        self.call("llvm.prefetch.p0", VOID, [self.b.inttoptr(address, pointer), *self._i32s(0, locality, 1)])

    def variable(self, initial: Value) -> Value:
        """A mutable local; LLVM keeps it in a register."""
        with self.b.goto_block(self._allocas):
            self.b.position_at_start(self._allocas)
            slot = self.b.alloca(initial.type)
        self.b.store(initial, slot)
        return slot

    def get(self, variable: Value) -> Value:
        return self.b.load(variable)

    def set(self, variable: Value, value: Value) -> None:
        self.b.store(value, variable)

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def call(self, name: str, returns: ir.Type, args: list[Value]) -> Value:
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(returns, [a.type for a in args]), name)
        return self.b.call(function, args)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.call(f"llvm.fma.{_suffix(a.type)}", a.type, [a, b, c])

    def unary(self, name: str, a: Value) -> Value:
        return self.call(f"llvm.{name}.{_suffix(a.type)}", a.type, [a])

    def bf16_bits(self, values: Value) -> Value:
        """f32 rounded to bf16, to the even one of two, as i32 whose lower half is 0. Not for NaN."""
        words = vec(I32, values.type.count)
        bits = self.b.bitcast(values, words)
        odd = self.b.and_(self.b.lshr(bits, self.const(words, 16)), self.const(words, 1))
        return self.b.and_(self.b.add(self.b.add(bits, odd), self.const(words, 0x7FFF)), self.const(words, -(1 << 16)))

    def bf16(self, values: Value) -> Value:
        """16 f32 rounded as by `bf16_bits`, as i16; by the one instruction for it where there are tiles."""
        if self.isa is not Isa.AMX:
            return self.high_halves(self.bf16_bits(values))
        rounded = self.call("llvm.x86.avx512bf16.cvtneps2bf16.512", vec(_Bfloat(), 16), [values])
        return self.b.bitcast(rounded, vec(I16, 16))

    def high_halves(self, words: Value) -> Value:
        """The upper 16 bits of every i32."""
        return self.b.trunc(self.b.lshr(words, self.const(words.type, 16)), vec(I16, words.type.count))

    def maximum(self, a: Value, b: Value) -> Value:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def exp(self, x: Value) -> Value:
        """e**x for f32 vectors to about 2 units in the last place; exactly 0 below -87, no overflow above 88.

        Range reduction by ln 2 in two parts and a degree-6 polynomial (S. Moshier, Cephes, expf).
        """

        def k(value: float) -> Value:
            return self.const(x.type, value)

        ints = vec(I32, x.type.count)
        clamped = self.b.select(self.b.fcmp_ordered("<", x, k(88.0)), x, k(88.0))
        clamped = self.b.select(self.b.fcmp_ordered(">", clamped, k(-87.0)), clamped, k(-87.0))
        z = self.unary("rint", self.b.fmul(clamped, k(1.44269504088896341)))
        r = self.fma(z, k(-0.693359375), clamped)
        r = self.fma(z, k(2.12194440e-4), r)
        p = k(1.9875691500e-4)
        for coefficient in EXP_COEFFICIENTS:
            p = self.fma(p, r, k(coefficient))
        y = self.b.fadd(self.fma(p, self.b.fmul(r, r), r), k(1.0))
        exponent = self.b.shl(self.b.add(self.b.fptosi(z, ints), self.const(ints, 127)), self.const(ints, 23))
        y = self.b.fmul(y, self.b.bitcast(exponent, x.type))
        return self.b.select(self.b.fcmp_ordered("<", x, k(-87.0)), k(0.0), y)

    def exp_short(self, x: Value) -> Value:
        """e**x for f32 vectors of numbers up to 0, to 2**-17 of it; exactly 0 below `SHORT_EXP_LEAST`.

        2**(x / ln 2) by the nearest whole power and a polynomial of degree 4, fitted for the least relative error.
        """

        def k(value: float) -> Value:
            return self.const(x.type, value)

        ints = vec(I32, x.type.count)
        power = self.maximum(self.b.fmul(x, k(1.44269504088896341)), k(SHORT_EXP_LEAST_POWER))
        whole = self.unary("rint", power)
        rest = self.b.fsub(power, whole)
        p = k(SHORT_EXP_FIRST)
        for coefficient in SHORT_EXP_COEFFICIENTS:
            p = self.fma(p, rest, k(coefficient))
        bits = self.b.add(self.b.bitcast(p, ints), self.b.shl(self.b.fptosi(whole, ints), self.const(ints, 23)))
        below = self.b.fcmp_ordered("<", x, k(SHORT_EXP_LEAST))
        return self.b.select(below, k(0.0), self.b.bitcast(bits, x.type))

    def reduce(self, x: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """All lanes of `x` combined by halving: lane i with lane i + n/2, and so on."""
        lanes = x.type.count
        while lanes > 1:
            lanes //= 2
            undefined = ir.Constant(x.type, ir.Undefined)
            low = self.b.shuffle_vector(x, undefined, ir.Constant(vec(I32, lanes), list(range(lanes))))
            high = self.b.shuffle_vector(x, undefined, ir.Constant(vec(I32, lanes), list(range(lanes, 2 * lanes))))
            x = combine(low, high)
        return self.b.extract_element(x, ir.Constant(I32, 0))

    def dot4(self, acc: Value, unsigned: Value, signed: Value) -> Value:
        """acc[16 x i32] + in each lane the sum of four products u8 * i8, from two vectors of 64 bytes.

        On AVX2 `unsigned` must be at most 128, since pairs of products are added in int16 (128 * 127 * 2 < 2**15).
        """
        signed = self.b.bitcast(signed, vec(I8, 64))
        if self.has_avx512:
            return self.call("llvm.x86.avx512.vpdpbusd.512", acc.type, [acc, unsigned, signed])
        return self.b.add(acc, self._halves(self._dot4_avx2, unsigned, signed))

    def dot4_signed(self, acc: Value, a: Value, b: Value) -> Value:
        """As `dot4` with both factors signed; AVX2 only, where the sign moves from one factor to the other."""
        b = self.b.bitcast(b, vec(I8, 64))
        return self.b.add(acc, self._halves(self._dot4_signed_avx2, a, b))

    @property
    def has_avx512(self) -> bool:
        return self.isa in (Isa.AVX512, Isa.AMX)

    def _dot4_avx2(self, unsigned: Value, signed: Value) -> Value:
        pairs = self.call("llvm.x86.avx2.pmadd.ub.sw", vec(I16, 16), [unsigned, signed])
        return self.call("llvm.x86.avx2.pmadd.wd", vec(I32, 8), [pairs, self.const(vec(I16, 16), 1)])

    def _dot4_signed_avx2(self, a: Value, b: Value) -> Value:
        magnitude = self.call("llvm.abs.v32i8", a.type, [a, ir.Constant(ir.IntType(1), 0)])
        return self._dot4_avx2(magnitude, self.call("llvm.x86.avx2.psign.b", b.type, [b, a]))

    def _halves(self, operation: Callable[[Value, Value], Value], a: Value, b: Value) -> Value:
        """`operation` on the lower and the upper 32 bytes, joined to 16 x i32."""
        joined = []
        for half in range(2):
            pick = ir.Constant(vec(I32, 32), list(range(32 * half, 32 * half + 32)))
            joined.append(
                operation(*(self.b.shuffle_vector(v, ir.Constant(v.type, ir.Undefined), pick) for v in (a, b)))
            )
        return self.b.shuffle_vector(*joined, ir.Constant(vec(I32, 16), list(range(16))))

    # -- control ----------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, count: Value | int, start: Value | int = 0) -> Iterator[Value]:
        """Runs the body for index = start, start + 1, ... below count; yields the index (i64)."""
        count, start = (self.i64(v) if isinstance(v, int) else v for v in (count, start))
        before = self.b.block
        head, body, done = (self.function.append_basic_block(name) for name in ("head", "body", "done"))
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64)
        index.add_incoming(start, before)
        self.b.cbranch(self.b.icmp_signed("<", index, count), body, done)
        self.b.position_at_end(body)
        yield index
        index.add_incoming(self.b.add(index, self.i64(1)), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(done)

    def _i32s(self, *values: int) -> list[Value]:
        return [ir.Constant(I32, v) for v in values]


SHORT_EXP_LEAST = -41.0
SHORT_EXP_LEAST_POWER = -60.0
SHORT_EXP_FIRST = 9.582853142957076e-3
SHORT_EXP_COEFFICIENTS = (5.590642673103278e-2, 2.4024098622745266e-1, 6.931241931537918e-1, 1.0)
EXP_COEFFICIENTS = (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def _suffix(type_: ir.Type) -> str:
    if isinstance(type_, ir.VectorType):
        return f"v{type_.count}{_suffix(type_.element)}"
    return {F16: "f16", F32: "f32", I8: "i8", I16: "i16", I32: "i32", I64: "i64"}[type_]
