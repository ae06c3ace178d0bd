"""Records to a `Trace`: nodes, sizes, order of time, and what there is to say about them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvledger.errors import TraceError
from kvledger.sim.formats.reader import Reader
from kvledger.sim.paths import Paths
from kvledger.sim.times import doubt_about, in_order
from kvledger.sim.trace import Record, Skipped, Trace

_FLUSH = 1 << 20
"""Block accesses that are collected before they become nodes."""

_NO_TIME = float("nan")


class TraceBuilder:
    """Takes records in the order of the file; keeps a few bytes of each block access and nothing else."""

    def __init__(self) -> None:
        self._paths = Paths()
        self._ids = array("q")
        self._ends = array("q")
        self._scopes = array("i")
        self._sizes = array("i")
        self._nodes: list[NDArray[np.int32]] = []
        self._lengths = array("q")
        self._input_tokens = array("q")
        self._times = array("d")
        self._sessions = array("q")
        self._num_sessions = 0

    def add(self, record: Record) -> None:
        self._ids.extend(record.ids)
        self._ends.append(len(self._ids))
        self._scopes.append(record.scope)
        if record.sizes is not None:
            self._sizes.extend(record.sizes)
        self._lengths.append(len(record.ids))
        self._input_tokens.append(record.input_tokens)
        self._times.append(_NO_TIME if record.time is None else record.time)
        self._sessions.append(-1 if record.session is None else record.session)
        self._num_sessions += record.session is not None
        if len(self._ids) >= _FLUSH:
            self._flush()

    def build(self, reader: Reader, skipped: Sequence[Skipped], *, trusts_unit: bool) -> Trace:
        """The trace of all records so far. Raises `TraceError` if there are none.

        `trusts_unit`: the unit of time was given, so nothing is said about it.
        """
        if not self._lengths:
            raise TraceError("The trace has no requests: give a file with at least one.")
        self._flush()
        lengths = _numbers(self._lengths, np.int64)
        input_tokens = _numbers(self._input_tokens, np.int64)
        nodes = np.concatenate(self._nodes)
        self._nodes.clear()
        notes = list(reader.notes)
        if self._sizes:
            sizes = _numbers(self._sizes, np.int32)
        else:
            sizes = _sizes(lengths, input_tokens, reader.block_size)
            notes += _mismatches(lengths, input_tokens, reader.block_size)
        times = _numbers(self._times, np.float64)
        unsure = doubt_about(times, reader, trusts_unit=trusts_unit)
        if unsure and not np.isnan(times).all():
            notes.append(unsure)
        times, order, note = in_order(times)
        sessions = _numbers(self._sessions, np.int64) if self._num_sessions == len(lengths) else None
        if order is not None:
            if reader.ordered:
                notes.append(note)
            accesses = _reordered(lengths, order)
            nodes, sizes, lengths, input_tokens = nodes[accesses], sizes[accesses], lengths[order], input_tokens[order]
            sessions = None if sessions is None else sessions[order]
        notes += _skips(skipped)
        return Trace(
            format=reader.name,
            block_size=reader.block_size,
            tail=reader.tail,
            nodes=nodes,
            sizes=sizes,
            ends=np.cumsum(lengths),
            input_tokens=input_tokens,
            times=times,
            sessions=sessions,
            num_nodes=self._paths.count,
            notes=tuple(notes),
            unsure_times=unsure,
            skipped=tuple(skipped),
        )

    def _flush(self) -> None:
        self._nodes.append(
            self._paths.walk(
                _numbers(self._ids, np.int64), _numbers(self._ends, np.int64), _numbers(self._scopes, np.int32)
            )
        )
        self._ids, self._ends, self._scopes = array("q"), array("q"), array("i")


def _numbers(values: array, dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.array(values, dtype)


def _sizes(lengths: NDArray[np.int64], input_tokens: NDArray[np.int64], block_size: int) -> NDArray[np.int32]:
    """Tokens of each block: the block size, and what is left of the input in the last ones."""
    sizes = np.full(int(lengths.sum()), block_size, np.int32)
    ends = np.cumsum(lengths)
    missing = np.where(lengths > 0, lengths * block_size - input_tokens, 0)
    partial = (missing > 0) & (missing < block_size)
    sizes[ends[partial] - 1] -= missing[partial].astype(np.int32)
    for request in np.flatnonzero(missing >= block_size):
        full, rest = divmod(int(input_tokens[request]), block_size)
        first = int(ends[request] - lengths[request])
        sizes[first + full : ends[request]] = 0
        if rest:
            sizes[first + full] = rest
    return sizes


def _mismatches(lengths: NDArray[np.int64], input_tokens: NDArray[np.int64], block_size: int) -> list[str]:
    notes = []
    missing = int(np.count_nonzero(input_tokens - lengths * block_size >= block_size))
    surplus = int(np.count_nonzero(lengths * block_size - input_tokens >= block_size))
    if missing:
        notes.append(
            f"{missing} of {len(lengths)} requests list fewer hash_ids than their input_length needs at {block_size}"
            " tokens a block: the tokens without an id count as input that cannot hit. If the blocks are larger,"
            " give --block-size."
        )
    if surplus:
        notes.append(
            f"{surplus} of {len(lengths)} requests list more hash_ids than their input_length fills at {block_size}"
            " tokens a block: the blocks beyond it count as blocks without tokens. If the blocks are smaller,"
            " give --block-size."
        )
    return notes


def _reordered(lengths: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """The accesses of requests in the given order."""
    starts = (np.cumsum(lengths) - lengths)[order]
    chosen = lengths[order]
    offsets = np.arange(int(chosen.sum())) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    return np.repeat(starts, chosen) + offsets


def _skips(skipped: Sequence[Skipped]) -> list[str]:
    if not skipped:
        return []
    reasons = Counter(each.why for each in skipped)
    shown = ", ".join(str(each.line) for each in skipped[:10]) + (", ..." if len(skipped) > 10 else "")
    why = "; ".join(f"{count} x {reason}" if count > 1 else reason for reason, count in reasons.most_common(3))
    one = len(skipped) == 1
    what, left = ("1 line", "is") if one else (f"{len(skipped)} lines", "are")
    return [f"{what} could not be read and {left} left out (number {shown}): {why}."]
