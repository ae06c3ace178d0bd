"""Tables in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def show_whole(table: Table) -> None:
    """Print a table with nothing of it cut off, however narrow the terminal: figures without their ends are wrong."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    needed = console.measure(table, options=console.options.update(max_width=1_000)).maximum
    console.width = max(console.width, needed)
    console.print(table)
