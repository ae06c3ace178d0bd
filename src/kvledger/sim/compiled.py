"""Numba for the loops of this room, with the machine code kept where Numba keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """`function`, compiled on first use; kept on disk if there is a folder for it."""
    try:
        fast: Any = numba.njit(cache=True)(function)
    except RuntimeError:  # no folder that can be written
        fast = numba.njit(function)
    return cast(Function, fast)
