"""Times of a trace: in order, and in the unit that the format says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvledger.sim.formats.reader import Reader

MILLISECOND = 0.001

_EPOCH_SECONDS, _EPOCH_MILLISECONDS = 1e9, 1e12
"""Numbers in between are dates of the years 2001 on in seconds; in milliseconds they would be days of 1970 to 2001."""

_UNITS = {"ms": "milliseconds", "s": "seconds"}


def doubt_about(times: NDArray[np.float64], reader: Reader, *, trusts_unit: bool) -> str:
    """Why times in seconds, as read, cannot be relied on; empty if nothing speaks against them.

    The unit cannot be seen in a number, but in how often requests come: a thousand times too often or too seldom for
    the kind of service that the format was recorded from.
    """
    missing = int(np.isnan(times).sum())
    if missing == len(times):
        return "The trace has no times."
    if missing:
        return f"{missing} of {len(times)} requests have no time: each counts as coming with the one before it."
    if trusts_unit or reader.gaps is None:
        return ""
    if (
        reader.time_unit == MILLISECOND
        and _EPOCH_SECONDS <= float(np.nanmin(times)) / MILLISECOND < _EPOCH_MILLISECONDS
    ):
        return (
            "The times look like seconds since 1970, where the"
            f" {reader.name} format has milliseconds: give --time-unit s if they are, --time-unit ms if not."
        )
    if len(times) < 2:
        return ""
    gap = float(np.ptp(times)) / (len(times) - 1)
    shortest, longest = reader.gaps
    if gap == 0 or shortest <= gap <= longest:
        return ""
    unit, other = ("ms", "s") if reader.time_unit == MILLISECOND else ("s", "ms")
    otherwise = gap / MILLISECOND if unit == "ms" else gap * MILLISECOND
    return (
        f"The times look like {_UNITS[other]}, where the {reader.name} format has {_UNITS[unit]}: a request every"
        f" {gap:.3g} s as it stands, every {otherwise:.3g} s otherwise. They are taken as {_UNITS[unit]}:"
        f" give --time-unit {other} if that is wrong, --time-unit {unit} if it is right."
    )


def in_order(times: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64] | None, str]:
    """Times in order, the order of the requests (None: as they are), and what to say about that.

    A request without a time takes that of the one before it. Requests at the same time stay in the order of the file.
    """
    if np.isnan(times).any():
        last = np.maximum.accumulate(np.where(np.isnan(times), -1, np.arange(len(times))))
        times = np.where(last >= 0, times[last], 0.0)
    earlier = int(np.count_nonzero(np.diff(times) < 0))
    if not earlier:
        return times, None, ""
    order = np.argsort(times, kind="stable")
    what = "1 request is" if earlier == 1 else f"{earlier} requests are"
    return times[order], order, f"The times are not in order ({what} earlier than the one before): replayed by time."
