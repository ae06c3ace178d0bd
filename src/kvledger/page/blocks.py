"""The parts of a page. Both renderings are made from these, so a terminal and a file show the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    """Begins a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text. An `is_warning` is shown so that nobody overlooks it."""

    text: str
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are shown, row by row. Columns in `numeric` (all but the first, if None) are set to the right.

    `tones[row][column]`, where given, colours a cell: "good", "bad", "dim" or "".
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: Sequence[int] | None = None
    tones: Sequence[Sequence[str]] = ()

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers."""
        return column > 0 if self.numeric is None else column in self.numeric

    def tone(self, row: int, column: int) -> str:
        """The colour of a cell."""
        return self.tones[row][column] if self.tones else ""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: its name and its points (x, y), x ascending."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over one pair of axes. On a logarithmic axis every coordinate is above zero.

    `limit` draws a level line across the chart, with its name.
    """

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    limit: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A matrix of shares between 0 and 1: `values[row][column]`, None where there is nothing to show."""

    title: str
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    values: Sequence[Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Grid:
    """Heat maps side by side: the heads of a layer."""

    maps: Sequence[HeatMap]


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that lie, one below the other: each has a name, its length between 0 and 1, and its value as text."""

    title: str
    bars: Sequence[tuple[str, float, str]]


@dataclass(frozen=True, slots=True)
class FlameSegment:
    """A piece of a flame's row: where it begins and how wide it is, as shares of the whole; `said` tells more."""

    label: str
    start: float
    width: float
    said: str


@dataclass(frozen=True, slots=True)
class Flame:
    """Rows of segments, each below the one that it is part of."""

    title: str
    rows: Sequence[Sequence[FlameSegment]]


Block = Heading | Paragraph | Table | LineChart | HeatMap | Grid | Bars | Flame


@dataclass(frozen=True, slots=True)
class Page:
    """A title and what stands below it."""

    title: str
    blocks: Sequence[Block]
