"""A page on a terminal, drawn by rich."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table as RichTable
from rich.text import Text

from kvledger.page import blocks
from kvledger.page.scale import scales, short

_TONES = {"good": "green", "bad": "red", "dim": "dim", "": ""}
_LINES = (("o", "cyan"), ("x", "magenta"), ("+", "yellow"), ("*", "green"), ("#", "blue"), ("@", "red"))
_SHADES = " ░▒▓█"
_WIDTH, _HEIGHT = 60, 15


def show(page: blocks.Page, console: Console | None = None) -> None:
    """Print a page, to standard output unless a console is given."""
    console = console or Console(highlight=False)
    console.print(Text(page.title, "bold"))
    for block in page.blocks:
        console.print()
        console.print(_drawn(block, console.width))


def _drawn(block: blocks.Block, width: int) -> RenderableType:
    match block:
        case blocks.Heading(text):
            return Text(text, "bold underline")
        case blocks.Paragraph(text, is_warning):
            return Panel(Text(text), style="yellow", expand=False) if is_warning else Text(text)
        case blocks.Table():
            return _table(block)
        case blocks.LineChart():
            return _chart(block)
        case blocks.HeatMap():
            return Text("\n").join([Text(block.title, "dim"), *_heat_lines(block, labels=True)])
        case blocks.Grid():
            return _grid(block, width)
        case blocks.Bars(title, bars):
            lines = [Text(f"{name:>24} {'█' * round(length * 40)} {value}") for name, length, value in bars]
            return Text("\n").join([Text(title, "dim"), *lines])
        case blocks.Flame(title, rows):
            told = [Text("  " * depth + one.said) for depth, row in enumerate(rows) for one in row]
            return Text("\n").join([Text(title, "dim"), *told])


_LONGEST_WORD = 16
"""Columns are wide enough for their longest word, up to this."""


def _table(table: blocks.Table) -> RichTable:
    drawn = RichTable(box=None, header_style="dim", pad_edge=False)
    for i, name in enumerate(table.columns):
        is_number = table.is_numeric(i)
        # The first column holds names, which people copy.
        words = [word for row in (table.columns, *table.rows) for word in row[i].split()]
        drawn.add_column(
            Text(name),
            justify="right" if is_number else "left",
            no_wrap=is_number or i == 0,
            overflow="fold",
            min_width=min(_LONGEST_WORD, max(map(len, words), default=0)),
        )
    for i, row in enumerate(table.rows):
        drawn.add_row(*(Text(cell, _TONES[table.tone(i, j)]) for j, cell in enumerate(row)))
    return drawn


def _chart(chart: blocks.LineChart) -> RenderableType:
    """Points on a grid of characters, later lines over earlier ones; the left margin has the values of y."""
    x_scale, y_scale = scales(chart)
    grid = [[Text(" ") for _ in range(_WIDTH)] for _ in range(_HEIGHT)]

    def row(y: float) -> int:
        return _HEIGHT - 1 - round(y_scale.place(y) * (_HEIGHT - 1))

    if chart.limit:
        grid[row(chart.limit[1])] = [Text("-", "dim") for _ in range(_WIDTH)]
    key = Text()
    for i, series in enumerate(chart.series):
        mark, colour = _LINES[i % len(_LINES)]
        for x, y in series.points:
            grid[row(y)][round(x_scale.place(x) * (_WIDTH - 1))] = Text(mark, colour)
        key.append(f"{mark} {series.name}   ", colour)
    if chart.limit:
        key.append(f"- {chart.limit[0]}", "dim")
    labels = {row(y): short(y) for y in y_scale.ticks()}
    lines = [Text(chart.title, "dim"), Text(f"{chart.y_label}", "dim")]
    for i, cells in enumerate(grid):
        lines.append(Text(f"{labels.get(i, ''):>8} |").append_text(Text().join(cells)))
    axis = [" "] * (_WIDTH + 8)
    for x in x_scale.ticks():
        label = short(x)
        at = round(x_scale.place(x) * (_WIDTH - 1))
        axis[at : at + len(label)] = label
    lines += [Text(f"{'':>8} +{'-' * _WIDTH}"), Text(f"{'':>8}  {''.join(axis).rstrip()}")]
    lines += [Text(f"{'':>8}  {chart.x_label}", "dim"), key]
    return Text("\n").join(lines)


def _heat_lines(heat: blocks.HeatMap, *, labels: bool) -> list[Text]:
    margin = max((len(label) for label in heat.row_labels), default=0) if labels else 0
    lines = []
    for label, row in zip(heat.row_labels, heat.values, strict=True):
        line = Text(f"{label:>{margin}} " if labels else "")
        for value in row:
            line.append((" " if value is None else _SHADES[min(int(value * 5), 4)]) * 2, "cyan")
        lines.append(line)
    return lines


def _grid(grid: blocks.Grid, width: int) -> Group:
    """As many maps in a row as the terminal has room for."""
    cell = max(len(heat.column_labels) * 2 for heat in grid.maps)
    cell = max(cell, *(len(heat.title) for heat in grid.maps))
    per_row = max(1, width // (cell + 2))
    rows = []
    for start in range(0, len(grid.maps), per_row):
        table = RichTable.grid(padding=(0, 2, 1, 0))
        table.add_row(
            *(
                Text("\n").join([Text(heat.title, "dim"), *_heat_lines(heat, labels=False)])
                for heat in grid.maps[start : start + per_row]
            )
        )
        rows.append(table)
    return Group(*rows)
