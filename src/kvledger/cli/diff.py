"""`kvledger diff`: where two request bodies first differ, as a provider's cache reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def diff(
    earlier: Annotated[Path, typer.Argument(metavar="A.json", help="The request that was sent first.")],
    later: Annotated[Path, typer.Argument(metavar="B.json", help="The one that should have read its cache.")],
    provider: Annotated[
        str | None,
        typer.Option(
            help="Whose order and rules.  [default: the provider that the model's name says]", show_default=False
        ),
    ] = None,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE|-", help="Write JSON ('-': standard output).")
    ] = None,
    no_text: Annotated[bool, typer.Option("--no-text", help="Show no excerpts.")] = False,
) -> None:
    """Show the first difference of two bodies in the provider's own order, and what is lost behind it.

    Tokens are estimated at four bytes each.

    Examples:

      kvledger diff monday.json tuesday.json

      kvledger diff a.json b.json --provider anthropic --json -
    """
    from kvledger.audit.readers.body_file import prompt_of, read_body

    before, after = (prompt_of(read_body(path), provider) for path in (earlier, later))
    said = _record(before, after, text=not no_text)
    if json_to == "-":
        typer.echo(json.dumps(said, indent=2, ensure_ascii=False))
        return
    if json_to is not None:
        Path(json_to).write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    _show(said)


def _record(before: Any, after: Any, *, text: bool) -> dict[str, Any]:
    from kvledger.providers.difference import first_difference

    found = first_difference(before, after)
    total = after.tokens
    settings = sorted(
        name for name in {*before.settings, *after.settings} if before.settings.get(name) != after.settings.get(name)
    )
    said: dict[str, Any] = {
        "provider": after.provider,
        "models": [before.model, after.model],
        "tokens": [before.tokens, total],
        "settings_changed": settings,
    }
    if found is None:
        return {**said, "shared_tokens": before.tokens, "lost_tokens": 0, "difference": None}
    shared = found.shared_tokens
    return {
        **said,
        "shared_tokens": shared,
        "lost_tokens": max(min(before.tokens, total) - shared, 0),
        "difference": {
            "level": found.level.value,
            "path": found.path,
            "path_before": found.path_before,
            "offset": found.offset,
            "before": found.before if text else "",
            "after": found.after if text else "",
        },
    }


def _show(said: dict[str, Any]) -> None:
    from kvledger.page.blocks import Block, Page, Paragraph, Table
    from kvledger.page.terminal import show

    blocks: list[Block] = []
    if said["models"][0] != said["models"][1]:
        models = " and ".join(said["models"])
        blocks.append(Paragraph(f"The models are {models}: each has a cache of its own.", is_warning=True))
    if said["settings_changed"]:
        blocks.append(Paragraph(f"Settings that differ: {', '.join(said['settings_changed'])}."))
    found = said["difference"]
    if found is None:
        blocks.append(Paragraph(f"The second begins with all of the first: about {said['shared_tokens']:,} tokens."))
    else:
        before, after = said["tokens"]
        rows = [("before", found["path_before"] or "", found["before"]), ("after", found["path"], found["after"])]
        blocks.append(
            Paragraph(
                f"Both begin with the same {said['shared_tokens']:,} tokens, of {before:,} and {after:,} (estimated)."
                f" They differ in the {found['level']}, at {found['path']}, character {found['offset']:,}:"
            )
        )
        blocks.append(Table(("", "path", "text"), rows, numeric=()))
        blocks.append(Paragraph(f"About {said['lost_tokens']:,} tokens behind it cannot be read from the cache."))
    show(Page(f"First difference, in the order of {said['provider']}", blocks))
