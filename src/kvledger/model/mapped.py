"""Files mapped into memory: pages are read when they are touched, and shared between processes."""

from __future__ import annotations

import mmap
import stat
from pathlib import Path

from kvledger.errors import ModelFileError


def map_file(path: Path) -> mmap.mmap:
    """Map the file at `path` read-only; raises `ModelFileError` if it cannot be read or is empty."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
            raise ModelFileError(f"{path} is not a regular file: give the path of a model file.")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelFileError(f"{path} is empty: fetch the file again.") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}.") from error
