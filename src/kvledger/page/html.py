"""A page as one HTML file that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from pathlib import Path

from kvledger.page.blocks import Page


def render(page: Page) -> str:
    """The text of the file."""
    import jinja2  # noqa: PLC0415 (only where a file is asked for)
    from markupsafe import Markup  # noqa: PLC0415

    from kvledger.page import svg  # noqa: PLC0415

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template("page.html.j2").render(
        page=page,
        line_chart=lambda chart: Markup(svg.line_chart(chart)),
        heat_map=lambda heat: Markup(svg.heat_map(heat)),
        bars=lambda block: Markup(svg.bars(block)),
        flame=lambda block: Markup(svg.flame(block)),
        kind=lambda block: type(block).__name__,
    )


def write(page: Page, path: Path) -> None:
    """Write the page to `path`."""
    path.write_text(render(page), encoding="utf-8")
