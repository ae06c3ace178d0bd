"""Charts as SVG elements, without scripts and without anything fetched from elsewhere."""

from __future__ import annotations

from html import escape

from kvledger.page.blocks import Bars, Flame, HeatMap, LineChart
from kvledger.page.scale import Scale, scales, short

COLOURS = ("#0b6e99", "#b8336a", "#b07d00", "#2e7d32", "#5e35b1", "#c62828")

_WIDTH, _HEIGHT = 720, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 200, 12, 44


def line_chart(chart: LineChart) -> str:
    """The chart as one `<svg>` element; its lines are named beside it."""
    x_scale, y_scale = scales(chart)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">']
    for y in y_scale.ticks():
        at = _y(y_scale, y)
        parts.append(f'<path class="rule" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{short(y)}</text>')
    for x in x_scale.ticks():
        parts.append(f'<text x="{_x(x_scale, x):.1f}" y="{_HEIGHT - 26}" text-anchor="middle">{short(x)}</text>')
    if chart.limit:
        name, value = chart.limit
        at = _y(y_scale, value)
        parts.append(f'<path class="limit" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 8}" y="{at + 4:.1f}">{escape(name)}</text>')
    for i, series in enumerate(chart.series):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{_x(x_scale, x):.1f},{_y(y_scale, y):.1f}" for x, y in series.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = _TOP + 14 + 18 * i
        parts.append(f'<rect x="{_WIDTH - _RIGHT + 8}" y="{at - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 24}" y="{at}">{escape(series.name)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(chart.x_label)}</text>')
    parts.append(
        f'<text x="14" y="{_HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 14 {_HEIGHT / 2})">'
        f"{escape(chart.y_label)}</text></svg>"
    )
    return "".join(parts)


def heat_map(heat: HeatMap, *, side: int = 14) -> str:
    """The matrix as one `<svg>` element: the darker, the larger. Hovering over a cell says what it is."""
    num_rows, num_columns = len(heat.row_labels), len(heat.column_labels)
    width, height = num_columns * side, num_rows * side
    parts = [
        f'<svg class="heat" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="{escape(heat.title)}"><rect class="ground" width="{width}" height="{height}"/>'
    ]
    for i, row in enumerate(heat.values):
        for j, value in enumerate(row):
            if value is not None:
                said = escape(f"{heat.row_labels[i]} to {heat.column_labels[j]}: {value:.3f}")
                parts.append(
                    f'<rect x="{j * side}" y="{i * side}" width="{side}" height="{side}" fill="{COLOURS[0]}"'
                    f' fill-opacity="{value:.3f}"><title>{said}</title></rect>'
                )
    return "".join(parts) + "</svg>"


def bars(block: Bars) -> str:
    """The bars as one `<svg>` element, names on the left, values behind their ends."""
    row, left, full = 24, 180, 440
    height = row * len(block.bars)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(block.title)}">']
    for i, (name, length, value) in enumerate(block.bars):
        y, width = i * row, full * length
        parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{left}" y="{y + 3}" width="{width:.1f}" height="{row - 6}" fill="{COLOURS[0]}"/>')
        parts.append(f'<text x="{left + width + 6:.1f}" y="{y + 16}">{escape(value)}</text>')
    return "".join(parts) + "</svg>"


def flame(block: Flame) -> str:
    """The rows as one `<svg>` element; a label is written where it has room, hovering tells the rest."""
    row = 26
    height = row * len(block.rows)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(block.title)}">']
    for i, segments in enumerate(block.rows):
        for j, segment in enumerate(segments):
            x, width = segment.start * _WIDTH, max(segment.width * _WIDTH, 1.0)
            colour = COLOURS[(i + j) % len(COLOURS)]
            room = int(width / 7)
            label = segment.label if len(segment.label) <= room else segment.label[: max(room - 2, 0)] + ".."
            parts.append(
                f'<g><title>{escape(segment.said)}</title><rect x="{x:.1f}" y="{i * row}" width="{width:.1f}"'
                f' height="{row - 2}" fill="{colour}" fill-opacity="0.3"/>'
            )
            if room > 4:
                parts.append(f'<text x="{x + 4:.1f}" y="{i * row + 16}">{escape(label)}</text>')
            parts.append("</g>")
    return "".join(parts) + "</svg>"


def _x(scale: Scale, value: float) -> float:
    return _LEFT + scale.place(value) * (_WIDTH - _LEFT - _RIGHT)


def _y(scale: Scale, value: float) -> float:
    return _HEIGHT - _BOTTOM - scale.place(value) * (_HEIGHT - _BOTTOM - _TOP)
