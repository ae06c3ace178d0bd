"""`kvledger cache`: look at what is cached, check it, clear it; on a running server, or in the folder of one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.errors import InvalidRequestError, ServerError

if TYPE_CHECKING:
    from kvledger.cache.folder import Shelf

URL = "http://127.0.0.1:8000"

_EXCERPT = 60
"""Characters of a prefix's text that fit on its line."""

cache = typer.Typer(
    help="Look at what is cached, check it, or clear it: on a running server, or in its folder on disk.",
    no_args_is_help=True,
)

Url = Annotated[str | None, typer.Option(metavar="URL", help=f"Address of a server.  [default: {URL}]")]
Key = Annotated[str | None, typer.Option(envvar="KVLEDGER_API_KEY", help="Key to send; an operator's sees all.")]
Folder = Annotated[Path | None, typer.Option(metavar="FOLDER", help="A --cache-folder, read without a server.")]
JsonTo = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': to standard output).")]


@cache.callback()
def options() -> None:
    """Look at what is cached, check it, or clear it.

    Examples:

    kvledger cache show

    kvledger cache show --url http://10.0.0.5:8000 --api-key KEY --json -

    kvledger cache verify --folder ~/kv

    kvledger cache clear
    """


@cache.command()
def show(url: Url = None, api_key: Key = None, folder: Folder = None, json_to: JsonTo = None) -> None:
    """Show the cached prefixes as a tree, with sizes, ages, hits, pins and expiry.

    Examples: kvledger cache show; kvledger cache show --folder ~/kv --json -
    """
    if folder is not None:
        from kvledger.cache.folder import read_shelf, shelves

        found = [read_shelf(path) for path in shelves(_only(folder, url))]
        if not _written({"object": "cache.folder", "models": [_shelf(shelf) for shelf in found]}, json_to):
            for shelf in found:
                _print_shelf(shelf)
        return
    body = _ask(url, "GET", "/v1/cache", api_key)
    if not _written(body, json_to):
        _print_server(body)


@cache.command()
def clear(url: Url = None, api_key: Key = None, folder: Folder = None, json_to: JsonTo = None) -> None:
    """Forget what is cached, in memory and on disk: of everybody, or with an ordinary key, of that key.

    Examples: kvledger cache clear; kvledger cache clear --folder ~/kv
    """
    if folder is not None:
        from kvledger.cache.folder import clear_shelf, shelves

        freed = sum(clear_shelf(path) for path in shelves(_only(folder, url)))
        if not _written({"object": "cache.cleared", "bytes": freed}, json_to):
            typer.echo(f"Cleared {folder}: {_size(freed)}.")
        return
    body = _ask(url, "DELETE", "/v1/cache", api_key)
    if not _written(body, json_to):
        typer.echo("Cleared." if body["tenant"] is None else "Cleared what was cached for this key.")


@cache.command()
def verify(url: Url = None, api_key: Key = None, folder: Folder = None, json_to: JsonTo = None) -> None:
    """Check every checksum and, on a server, every invariant. Exit code 1 if anything is not as it should be.

    Examples: kvledger cache verify; kvledger cache verify --folder ~/kv --json -
    """
    if folder is not None:
        from kvledger.cache.folder import shelves, verify_shelf

        paths = shelves(_only(folder, url))
        files = sum(len(list(path.glob("*.kv"))) for path in paths)
        problems = [problem for path in paths for problem in verify_shelf(path)]
    else:
        body = _ask(url, "GET", "/v1/cache/verify", api_key)
        files, problems = body["files"], body["problems"]
    if not _written({"object": "cache.verified", "files": files, "problems": problems}, json_to):
        for problem in problems:
            typer.echo(problem)
        typer.echo(f"{files} files checked, {len(problems)} problems.")
    if problems:
        raise typer.Exit(1)


def _only(folder: Path, url: str | None) -> Path:
    if url is not None:
        raise InvalidRequestError("--folder and --url say two places to look at: give one of them.")
    return folder.expanduser()


def _ask(url: str | None, method: str, path: str, key: str | None) -> Any:
    """The JSON that a server answers. Raises `ServerError` with what it says, or with why there is no answer."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    base = (url or URL).rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise InvalidRequestError(f"--url is {url!r}, which is no address: write it like {URL}.")
    request = Request(base + path, method=method, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except HTTPError as error:
        try:
            message = json.load(error)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            message = f"status {error.code}: is this a kvledger server?"
        raise ServerError(f"{base} answers: {message}") from None
    except (URLError, OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(f"No answer from {base} ({reason}): start a server, or name one with --url.") from None
    except ValueError:
        raise ServerError(f"{base} does not answer in JSON: is this a kvledger server?") from None


def _written(body: Any, json_to: Path | None) -> bool:
    """Write `body` where it is wanted as JSON; False if it is not."""
    if json_to is None:
        return False
    text = json.dumps(body, indent=2, ensure_ascii=False)
    if json_to == Path("-"):
        typer.echo(text)
    else:
        json_to.write_text(text + "\n", encoding="utf-8")
    return True


def _print_server(body: dict[str, Any]) -> None:
    from rich.text import Text

    prefixes = body["prefixes"]
    tokens, size = sum(each["tokens"] for each in prefixes), sum(each["bytes"] for each in prefixes)
    heading = f"{tokens} tokens in {_size(size)} of memory"
    for tier, numbers in body.get("tiers", {}).items():
        heading += f"; {tier}: {_size(numbers['bytes'])} of {_size(numbers.get('limit_bytes', 0))}"
    lines = []
    for each in prefixes:
        facts = [f"{each['tokens']} tokens", _size(each["bytes"]), f"{each['hits']} hits", f"age {_age(each['age_s'])}"]
        facts.append(f"idle {_age(each['idle_s'])}")
        if each["expires_s"] is not None:
            facts.append(f"expires in {_age(each['expires_s'])}")
        if each["pinned_blocks"]:
            facts.append(f"{each['pinned_blocks']} blocks pinned")
        label = Text(_excerpt(each["text"]), style="bold")
        label.append(f"  {', '.join(facts)}", style="dim")
        lines.append((each["depth"], f"key {each['tenant']}" if each["tenant"] else "", label))
    _print(_tree(heading, lines))


def _print_shelf(shelf: Shelf) -> None:
    from datetime import datetime

    from rich.text import Text

    lines = []
    for each in shelf.stretches:
        written = datetime.fromtimestamp(each.modified).astimezone().isoformat(sep=" ", timespec="seconds")
        label = Text(f"{each.num_tokens} tokens", style="bold")
        label.append(f"  from {each.position} on, {_size(each.num_bytes)}, written {written}", style="dim")
        lines.append((each.depth, f"after {each.parent.hex()[:12]}" if not each.depth else "", label))
    heading = f"{shelf.path.name}: {shelf.num_files} files, {_size(shelf.num_bytes)}"
    _print(_tree(heading, lines))
    for problem in shelf.problems:
        typer.echo(problem)


def _tree(heading: str, lines: list[tuple[int, str, Any]]) -> Any:
    """A tree of (depth, name of the tree it belongs to, label), each line after the one that it hangs on."""
    from rich.tree import Tree

    top = Tree(heading, highlight=False)
    parents = [top]
    group = ""
    for depth, name, label in lines:
        if depth == 0:
            if name != group:
                parents, group = [top.add(name, style="bold")] if name else [top], name
            del parents[1:]
        else:
            del parents[depth + 1 :]
        parents.append(parents[-1].add(label))
    return top


def _print(tree: Any) -> None:
    """As wide as the terminal; where there is none, wide enough for a line each."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 240).print(tree)


def _shelf(shelf: Shelf) -> dict[str, Any]:
    return {
        "folder": str(shelf.path),
        "files": shelf.num_files,
        "bytes": shelf.num_bytes,
        "problems": shelf.problems,
        "prefixes": [
            {
                "depth": each.depth,
                "position": each.position,
                "parent": each.parent.hex(),
                "tokens": each.num_tokens,
                "blocks": each.num_blocks,
                "bytes": each.num_bytes,
                "modified": each.modified,
            }
            for each in shelf.stretches
        ],
    }


def _excerpt(text: str) -> str:
    """One line of what a person can read, control characters and line breaks shown as such."""
    line = "".join(each if each.isprintable() else "\u23ce" if each == "\n" else "\ufffd" for each in text)
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "\u2026"


def _size(num_bytes: int) -> str:
    from rich.filesize import decimal

    return decimal(num_bytes)


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
