"""One page, two renderings."""

from __future__ import annotations

import io
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvledger.page.blocks import Grid, Heading, HeatMap, LineChart, Page, Paragraph, Series, Table
from kvledger.page.html import render
from kvledger.page.scale import Scale, scales, short
from kvledger.page.svg import heat_map, line_chart
from kvledger.page.terminal import show

CHART = LineChart("chart", "x", "y", [Series("<line>", [(1.0, 1.0), (10.0, 100.0)])], log_x=True, limit=("top", 50.0))
HEAT = HeatMap("heat", ["a", "b"], ["a", "b"], [[1.0, None], [0.25, 0.75]])
PAGE = Page(
    "A <title>",
    [
        Heading("Head & foot"),
        Paragraph("text [bold]not markup[/bold] <b>"),
        Paragraph("watch out", is_warning=True),
        Table(("name", "n"), [("<a>", "1"), ("b", "2")], tones=[("", "good"), ("dim", "bad")]),
        CHART,
        HEAT,
        Grid([HEAT, HEAT]),
    ],
)


def drawn(page: Page, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(page, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_page_on_a_terminal():
    text = drawn(PAGE)
    for part in ("Head & foot", "[bold]not markup[/bold] <b>", "watch out", "<a>", "<line>", "top", "heat"):
        assert part in text


@pytest.mark.parametrize("width", [20, 40, 200])
def test_any_width_will_do(width):
    drawn(PAGE, width)


def test_a_page_as_html_needs_nothing_else_and_escapes_everything():
    page = render(PAGE)
    HTMLParser().feed(page)
    for part in ("Head &amp; foot", "&lt;a&gt;", "A &lt;title&gt;", 'class="warning"', "&lt;line&gt;"):
        assert part in page
    for part in ("<script", "http", "@import", "<link", "<b>"):
        assert part not in page


def test_charts_are_well_formed():
    for text in (line_chart(CHART), heat_map(HEAT)):
        assert ElementTree.fromstring(text).tag == "svg"


def test_a_heat_map_shows_three_of_four_cells():
    assert heat_map(HEAT).count("<title>") == 3


def test_a_line_of_one_point():
    single = LineChart("c", "x", "y", [Series("s", [(3.0, 0.0)])])
    drawn(Page("p", [single]))
    ElementTree.fromstring(line_chart(single))


@given(st.floats(1e-6, 1e12), st.floats(1.01, 1e6), st.booleans())
def test_ticks_lie_within_their_scale_and_are_not_too_many(low, factor, is_log):
    scale = Scale(low, low * factor, is_log)
    ticks = scale.ticks()
    assert len(ticks) <= 12
    assert all(-0.01 <= scale.place(tick) <= 1.01 for tick in ticks)


@given(st.lists(st.tuples(st.floats(0.1, 1e9), st.floats(0, 1e15)), min_size=1, max_size=20))
def test_every_point_lies_on_its_chart(points):
    chart = LineChart("c", "x", "y", [Series("s", sorted(points))], log_x=True)
    x_scale, y_scale = scales(chart)
    for x, y in points:
        assert -1e-9 <= x_scale.place(x) <= 1 + 1e-9
        assert -1e-9 <= y_scale.place(y) <= 1 + 1e-9
    drawn(Page("p", [chart]))


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0"), (999, "999"), (1500, "1.5k"), (2e6, "2M"), (3.25e9, "3.25G"), (1e13, "10T"), (0.25, "0.25")],
)
def test_short_numbers(value, said):
    assert short(value) == said
