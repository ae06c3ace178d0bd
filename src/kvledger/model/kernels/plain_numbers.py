"""Single numbers as the plain kernels compute them: conversions, exp, and sums in a fixed order.

Everything here is float32, and every line rounds where the emitters of `emit.py` round. Half precision is converted by
arithmetic on bits, since not every processor has instructions for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.model.kernels.emit import (
    EXP_COEFFICIENTS,
    SHORT_EXP_COEFFICIENTS,
    SHORT_EXP_FIRST,
    SHORT_EXP_LEAST,
    SHORT_EXP_LEAST_POWER,
)
from kvledger.model.kernels.intrinsics import bits_of, float_of, fma, peek_f32, peek_i8, peek_u16, poke_f32, poke_u16
from kvledger.model.kernels.jit import kept

f32 = np.float32
Values = NDArray[np.float32]

ZERO, ONE = f32(0.0), f32(1.0)
_EXP_MOST, _EXP_LEAST = f32(88.0), f32(-87.0)
_LOG2_E, _LN2_HIGH, _LN2_LOW = f32(1.44269504088896341), f32(-0.693359375), f32(2.12194440e-4)
_EXP_FIRST, _EXP_REST = f32(1.9875691500e-4), tuple(f32(c) for c in EXP_COEFFICIENTS)
_SHORT_LEAST, _SHORT_LEAST_POWER = f32(SHORT_EXP_LEAST), f32(SHORT_EXP_LEAST_POWER)
_SHORT_FIRST, _SHORT_REST = f32(SHORT_EXP_FIRST), tuple(f32(c) for c in SHORT_EXP_COEFFICIENTS)
_HALF_STEP = f32(2.0**-24)  # from one subnormal half to the next
_HALF_STEPS = f32(2.0**24)


@kept
def half_to_float(half: int) -> np.float32:
    """The value of 16 bits of IEEE 754 half precision; exact."""
    sign, exponent, fraction = half >> 15, half >> 10 & 31, half & 1023
    if exponent == 0:
        value = f32(fraction) * _HALF_STEP
        return -value if sign else value
    exponent = 255 if exponent == 31 else exponent + 112  # infinities and NaNs keep the largest exponent
    return float_of(sign << 31 | exponent << 23 | fraction << 13)


@kept
def float_to_half(value: np.float32) -> int:
    """The 16 bits of the nearest half, of the even one of two; infinite from 65520 on."""
    bits = bits_of(value)
    sign, magnitude = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:  # NaN
        return sign | 0x7E00
    if magnitude >= 0x477FF000:  # 65520
        return sign | 0x7C00
    if magnitude < 0x38800000:  # 2**-14: a whole number of subnormal steps
        return sign | int(np.rint(float_of(magnitude) * _HALF_STEPS))
    return sign | (magnitude + 0xFFF + (magnitude >> 13 & 1) >> 13) - (112 << 10)


@kept
def float_to_bf16(value: np.float32) -> int:
    """The 16 bits of the nearest bf16, of the even one of two. Not for NaN."""
    bits = bits_of(value)
    return (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFFFFFF) >> 16


@kept
def bf16_to_float(bits: int) -> np.float32:
    """The value of 16 bits of bf16; exact."""
    return float_of(bits << 16)


@kept
def peek_number(address: int, index: int, size: int) -> np.float32:
    """Number `index` of those at `address`: float32, float16 or int8 by their `size` in bytes."""
    if size == 4:
        return peek_f32(address + 4 * index)
    if size == 2:
        return half_to_float(peek_u16(address + 2 * index))
    return f32(peek_i8(address + index))


@kept
def poke_float(address: int, index: int, size: int, value: np.float32) -> None:
    """Store `value` as number `index` at `address`, in float32 or rounded to float16 by `size`."""
    if size == 4:
        poke_f32(address + 4 * index, value)
    else:
        poke_u16(address + 2 * index, float_to_half(value))


@kept
def maximum(a: np.float32, b: np.float32) -> np.float32:
    return a if a > b else b


@kept
def exp(x: np.float32) -> np.float32:
    """e**x, step by step as `Emit.exp`."""
    if x < _EXP_LEAST:
        return ZERO
    x = min(x, _EXP_MOST)
    z = np.rint(x * _LOG2_E)
    r = fma(z, _LN2_LOW, fma(z, _LN2_HIGH, x))
    p = _EXP_FIRST
    for coefficient in _EXP_REST:
        p = fma(p, r, coefficient)
    return (fma(p, r * r, r) + ONE) * float_of(int(z) + 127 << 23)


@kept
def exp_short(x: np.float32) -> np.float32:
    """e**x for numbers up to 0, step by step as `Emit.exp_short`."""
    if x < _SHORT_LEAST:
        return ZERO
    power = maximum(x * _LOG2_E, _SHORT_LEAST_POWER)
    whole = np.rint(power)
    p, rest = _SHORT_FIRST, power - whole
    for coefficient in _SHORT_REST:
        p = fma(p, rest, coefficient)
    return float_of(bits_of(p) + (int(whole) << 23))


@kept
def sum_lanes(lanes: Values) -> np.float32:
    """All lanes added by halving: lane i and lane i + n / 2, and so on. Overwrites them."""
    half = len(lanes)
    while half > 1:
        half //= 2
        for i in range(half):
            lanes[i] += lanes[i + half]
    return f32(lanes[0])


@kept
def peak_lanes(lanes: Values) -> np.float32:
    """The largest lane, found by halving. Overwrites them."""
    half = len(lanes)
    while half > 1:
        half //= 2
        for i in range(half):
            lanes[i] = maximum(lanes[i], lanes[i + half])
    return f32(lanes[0])
