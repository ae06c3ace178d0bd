"""Axes: where a value lies between the ends, and which round values to write beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvledger.page.blocks import LineChart


@dataclass(frozen=True, slots=True)
class Scale:
    """A stretch of values from `low` to `high`, which differ."""

    low: float
    high: float
    is_log: bool

    def place(self, value: float) -> float:
        """Where `value` lies: 0 at `low`, 1 at `high`."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 5) -> list[float]:
        """About `count` round values within the scale: multiples of 1, 2 or 5, on a logarithmic one powers of ten."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            if last > first:
                step = -(-(last - first) // count) or 1
                return [10.0**exponent for exponent in range(first, last + 1, step)]
        rough = (self.high - self.low) / count
        unit = 10.0 ** math.floor(math.log10(rough))
        step_size = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
        begin = math.ceil(self.low / step_size - 1e-9)
        end = math.floor(self.high / step_size + 1e-9)
        return [i * step_size for i in range(begin, end + 1)]


def scales(chart: LineChart) -> tuple[Scale, Scale]:
    """The axes that show every point of a chart; linear ones begin at zero."""
    points = [point for series in chart.series for point in series.points]
    xs = [x for x, _ in points]
    ys = [y for _, y in points] + ([chart.limit[1]] if chart.limit else [])
    return _spanning(xs, chart.log_x, from_zero=False), _spanning(ys, chart.log_y, from_zero=True)


def _spanning(values: list[float], is_log: bool, *, from_zero: bool) -> Scale:
    low, high = min(values), max(values)
    if from_zero and not is_log:
        low = min(low, 0.0)
    if low == high:
        low, high = (low / 2, high * 2) if is_log else (low, high + 1)
    return Scale(low, high, is_log)


def short(value: float) -> str:
    """A number of at most three or four digits with the letter of its thousands: 1.5M, 20k, 0.25."""
    size = abs(value)
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"
