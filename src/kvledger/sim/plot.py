"""The hit curves as a picture: PNG, SVG, or a page of HTML with the figures below."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from pathlib import Path

from kvledger.errors import SimulationError
from kvledger.sim.report import Series
from kvledger.sim.score import DEFINITIONS, Score, Window
from kvledger.sim.trace import Trace

SUFFIXES = (".png", ".svg", ".html")

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 15px/1.5 sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222 }}
svg {{ max-width: 100%; height: auto }} table {{ border-collapse: collapse }}
td, th {{ padding: 2px 14px 2px 0; text-align: right }} td:first-child, th:first-child {{ text-align: left }}
dt {{ font-weight: bold }}</style>
<h1>{title}</h1>
{picture}
<h2>Figures</h2>
<table><tr><th>policy</th><th>capacity, tokens</th><th>token</th><th>block</th><th>full block</th>
<th>token, last half</th></tr>
{rows}
</table>
<h2>What they mean</h2>
<dl>{definitions}</dl>
</html>
"""


def check_suffix(path: Path) -> None:
    """Raise `SimulationError` for a file that would be no picture."""
    if path.suffix.lower() not in SUFFIXES:
        raise SimulationError(f"{path} would be no picture: give a name that ends in {', '.join(SUFFIXES)}.")


def write(path: Path, trace: Trace, all_series: Sequence[Series], *, title: str) -> None:
    """Draw the token hit ratio against the capacity and write it in the format that the name of `path` says.

    Solid lines are the whole trace, dashed ones its second half. Raises `SimulationError` if matplotlib is missing.
    """
    check_suffix(path)
    suffix = path.suffix.lower()
    picture = _drawn(trace, all_series, "png" if suffix == ".png" else "svg", "" if suffix == ".html" else title)
    if suffix == ".html":
        path.write_text(_page(trace, all_series, picture.decode(), title), encoding="utf-8")
    else:
        path.write_bytes(picture)


def _drawn(trace: Trace, all_series: Sequence[Series], format: str, title: str) -> bytes:
    try:
        from matplotlib import rc_context  # noqa: PLC0415 (an extra)
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError:
        raise SimulationError("Pictures need matplotlib: install kvledger[sim].") from None
    with rc_context({"svg.hashsalt": "kvledger", "svg.fonttype": "none"}):  # the same picture every time
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.add_subplot()
        for number, each in enumerate(all_series):
            sizes = [size * trace.block_size for size, _ in each.points]
            marker = None if each.policy == "lru" and len(sizes) > 1 else "o"
            for style, window in (("-", "whole"), ("--", "last_half")):
                ratios = [_percent(getattr(score, window)) for _, score in each.points]
                name = each.policy if window == "whole" else f"{each.policy}, last half"
                axes.plot(sizes, ratios, style, color=f"C{number}", marker=marker, markersize=4, label=name)
        axes.set_xscale("log")
        axes.set_ylim(0, 100)
        axes.set_xlabel(f"capacity in tokens (blocks of {trace.block_size})")
        axes.set_ylabel("input tokens that hit, %")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend()
        written = io.BytesIO()
        figure.savefig(written, format=format, metadata={"Date": None} if format == "svg" else None, dpi=150)
    return written.getvalue()


def _percent(window: Window) -> float:
    value = window.token.value
    return float("nan") if value is None else 100 * value


def _page(trace: Trace, all_series: Sequence[Series], picture: str, title: str) -> str:
    rows = "\n".join(_row(trace, each.policy, size, score) for each in all_series for size, score in each.points)
    definitions = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
        for name, text in {**DEFINITIONS, "tail": trace.tail}.items()
    )
    drawing = picture[picture.index("<svg") :]
    return _PAGE.format(title=html.escape(title), picture=drawing, rows=rows, definitions=definitions)


def _row(trace: Trace, policy: str, size: int, score: Score) -> str:
    ratios = (score.whole.token, score.whole.block, score.whole.full_block, score.last_half.token)
    cells = "".join("<td>-</td>" if each.value is None else f"<td>{100 * each.value:.2f} %</td>" for each in ratios)
    return f"<tr><td>{policy}</td><td>{size * trace.block_size:,}</td>{cells}</tr>"
