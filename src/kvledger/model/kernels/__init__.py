"""Compute kernels. Each is one C function found by address; `table.py` says which one serves which weights.

Two builds of every kernel exist: LLVM IR emitted from Python (`linear.py`, `attention.py`, `rows.py`, for x86 with AVX2
or AVX-512) and its twin in plain Numba loops (`plain*.py`, any processor, the test oracle). Both compute the same
floating-point operations in the same order, so their results are equal bit for bit.
"""
