"""How many bits an element takes, by the name people give a data type."""

from __future__ import annotations

import difflib
from fractions import Fraction

from kvledger.errors import PlanError

KV_BITS = {
    "fp32": Fraction(32),
    "fp16": Fraction(16),
    "bf16": Fraction(16),
    "fp8": Fraction(8),
    "int8": Fraction(8),
    "int4": Fraction(4),
    "q8_0": Fraction(34 * 8, 32),
    "q4_0": Fraction(18 * 8, 32),
}
"""Of a key or value. q8_0 and q4_0 are llama.cpp's, with a 16-bit scale for every 32 elements; scales of fp8, int8 and
int4, which differ by engine, are not in here."""

WEIGHT_BITS = {
    "fp32": Fraction(32),
    "fp16": Fraction(16),
    "bf16": Fraction(16),
    "fp8": Fraction(8),
    "int8": Fraction(8),
    "mxfp4": Fraction(4) + Fraction(8, 32),
    "int4": Fraction(4) + Fraction(16, 128),
}
"""Of a weight. mxfp4 has an 8-bit scale for every 32 (OCP Microscaling 1.0), int4 a 16-bit one for every 128 (GPTQ,
AWQ). Embeddings, output and norms stay in 16 bits below that; of mxfp4, all but the routed experts does."""

_ALIASES = {
    "f32": "fp32",
    "float32": "fp32",
    "f16": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}


def kv_dtype(name: str) -> str:
    """The key of `KV_BITS` that `name` means; raises `PlanError` with near names for an unknown one."""
    return _known(name, KV_BITS, "KV dtype", "--kv-dtype")


def weight_dtype(name: str) -> str:
    """The key of `WEIGHT_BITS` that `name` means; raises `PlanError` with near names for an unknown one."""
    return _known(name, WEIGHT_BITS, "weight dtype", "--weight-dtype")


def num_bytes(elements: int, bits: Fraction) -> int:
    """Bytes of `elements` elements, rounded up."""
    return -(-elements * bits.numerator // (8 * bits.denominator))


def _known(name: str, known: dict[str, Fraction], what: str, option: str) -> str:
    key = name.lower()
    key = _ALIASES.get(key, key)
    if key in known:
        return key
    near = difflib.get_close_matches(key, known, n=1)
    advice = f"did you mean {near[0]}?" if near else f"{option} takes {', '.join(known)}."
    raise PlanError(f"The {what} {name!r} is not known: {advice}")
