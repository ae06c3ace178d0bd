"""`kvledger tokens`: how a model cuts a text into tokens."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvledger.text.tokenizer import Tokenizer

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def tokens(
    text: Annotated[str, typer.Argument(help="The text; - reads standard input.")],
    model: Annotated[str, typer.Option(help="A model's name, or the path of a GGUF file or a folder.")] = "smollm2",
    special: Annotated[bool, typer.Option(help="Take names such as <|im_end|> for the tokens they name.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the tokens of a text: what each one says, its id and its bytes."""
    tokenizer = load_tokenizer(model)
    ids = tokenizer.encode(sys.stdin.read() if text == "-" else text, special=special)
    if as_json:
        typer.echo(json.dumps({"model": model, "tokens": [_record(tokenizer, id) for id in ids]}, ensure_ascii=False))
    else:
        _show(tokenizer, ids)


def load_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a model: its name, or the path of a GGUF file or a folder."""
    from kvledger.model.gguf_file import read_gguf
    from kvledger.model.store import resolve
    from kvledger.text.tokenizer import Tokenizer

    path = resolve(model)
    if path.is_dir():
        return Tokenizer.from_file(path / "tokenizer.json", path / "tokenizer_config.json")
    return Tokenizer.from_metadata(read_gguf(path).metadata, path)


def _record(tokenizer: Tokenizer, id: int) -> dict[str, str | int | None]:
    """A token as JSON; `text` is null where its bytes are not whole characters."""
    data = tokenizer.token_bytes(id)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    return {"text": text, "id": id, "bytes": data.hex()}


def _show(tokenizer: Tokenizer, ids: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from kvledger.text.stream import TextStream

    stream = TextStream(tokenizer)
    whole = Text()  # a character in several tokens takes the colour of the last
    table = Table("text", "id", "bytes", box=None, header_style="dim", pad_edge=False)
    table.columns[0].overflow = table.columns[2].overflow = "fold"
    table.columns[1].justify = "right"
    num_bytes = 0
    for i, id in enumerate(ids):
        data = tokenizer.token_bytes(id)
        num_bytes += len(data)
        colour = _COLOURS[i % len(_COLOURS)]
        piece = _visible(data.decode("utf-8", "backslashreplace"))
        if id in tokenizer.special_ids:
            colour = f"bold {colour}"
            whole.append(piece, colour)
        else:
            whole.append(_visible(stream.push(id)), colour)
        table.add_row(Text(piece, f"reverse {colour}"), str(id), Text(data.hex(" "), "dim"))
    console = Console(highlight=False)
    for part in (whole, "", table, ""):
        console.print(part)
    console.print(f"{len(ids)} tokens, {num_bytes} bytes", style="dim")


def _visible(text: str) -> str:
    """Text with spaces and control characters made visible, so that it can do nothing to a terminal."""
    letters = text.replace(" ", "\u2423")
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in letters)
