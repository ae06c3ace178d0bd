"""How the attention of a step is cut into units of work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvledger.model.kernels.attention import CHUNK

SPLIT_BELOW = 64
"""A step with fewer units than this is cut finer: each chunk of keys becomes a unit."""


@dataclass(frozen=True)
class Work:
    """`tiles`, `units` and `merges` as `step.Batch` wants them (int64 [n, 4], [n, 4], [n, 3])."""

    tiles: NDArray[np.int64]
    units: NDArray[np.int64]
    merges: NDArray[np.int64]
    num_partials: int


def divide(spans: Sequence[tuple[int, int]], heights: Sequence[int], num_kv_heads: int) -> Work:
    """Cut runs, given as (first position, tokens), into tiles of the given heights and tiles into units.

    A tile never crosses a chunk boundary in its positions, so that every row of it sees at least one key of its last
    chunk. Where few tiles would leave threads idle, each chunk is a unit of its own and the partial results are merged
    afterwards, in the same order as within one unit.
    """
    tiles: list[tuple[int, int, int, int]] = []
    first = 0
    for row, (start, length) in enumerate(spans):
        position, end = start, start + length
        while position < end:
            room = min(end, (position // CHUNK + 1) * CHUNK) - position
            height = next(h for h in heights if h <= room)
            tiles.append((first, height, position, row))
            first += height
            position += height
    fine = len(tiles) * num_kv_heads < SPLIT_BELOW
    units: list[tuple[int, int, int, int]] = []
    merges: list[tuple[int, int, int]] = []
    slots = 0
    for i, (_, _, position, _) in enumerate(tiles):
        chunks = position // CHUNK + 1
        if fine and chunks > 1:
            units.extend((i, c, c + 1, slots + c) for c in range(chunks))
            merges.append((i, slots, slots + chunks))
            slots += chunks
        else:
            units.append((i, 0, chunks, -1))
    return Work(_table(tiles, 4), _table(units, 4), _table(merges, 3), slots)


def _table(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int64]:
    return np.array(rows, np.int64).reshape(-1, width)
