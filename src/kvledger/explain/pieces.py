"""Text that people look at: pieces of it with spaces shown, and arguments that may name a file."""

from __future__ import annotations

from pathlib import Path

from kvledger.errors import ExplainError

_MOST = 4_000_000  # bytes


def visible(piece: bytes) -> str:
    """The bytes of a token with spaces and control characters made visible, so that they do nothing to a terminal."""
    letters = piece.decode("utf-8", "backslashreplace").replace(" ", "\u2423")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in letters)


def read_text(argument: str) -> str:
    """The text itself, or what is in the file where it begins with @. Raises `ExplainError` for what is no text."""
    if not argument.startswith("@"):
        return argument
    path = Path(argument[1:])
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ExplainError(f"{path} cannot be read: {error.strerror}.") from error
    if len(data) > _MOST:
        raise ExplainError(f"{path} has {len(data)} bytes: {_MOST} is the most that is shown.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ExplainError(f"{path} is not a text: byte {error.start} is not UTF-8.") from None
