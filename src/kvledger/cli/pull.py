"""`kvledger pull`: bring a model to this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="A known name (smollm2), a path, a Hugging Face repository org/name or org/name/file.gguf."
        ),
    ],
) -> None:
    """Fetch a model and check it; what is here already is not fetched again.

    Models go to the user's cache folder, or to the folder that the environment variable KVLEDGER_HOME names.
    """
    from kvledger.model import store

    with _Bar() as bar:
        store.pull(model, bar)


class _Bar:
    """A progress bar on a terminal; elsewhere only the sentences. Everything goes to standard error."""

    def __enter__(self) -> _Bar:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        columns = TextColumn("fetching"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task = self._progress.add_task("fetching", total=None, visible=False)
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, done: int, total: int) -> None:
        self._progress.update(self._task, completed=done, total=total, visible=True)
