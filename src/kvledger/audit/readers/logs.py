"""All logs that were named, whatever their forms, as one stream of records in which a response counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvledger.audit.readers.batch import BatchReader
from kvledger.audit.readers.claude_code import ClaudeCodeReader
from kvledger.audit.readers.codex import CodexReader
from kvledger.audit.readers.exchange import ExchangeReader
from kvledger.audit.readers.fields import Json
from kvledger.audit.readers.har import HarReader
from kvledger.audit.readers.langfuse import LangfuseReader
from kvledger.audit.readers.lines import SQLITE, Broken, items
from kvledger.audit.readers.litellm import LiteLLMReader
from kvledger.audit.readers.otel import OtelReader
from kvledger.audit.readers.reader import Reader
from kvledger.audit.readers.receipts import ReceiptReader, ledger_records
from kvledger.audit.readers.usage_rows import UsageReader
from kvledger.audit.record import Record, Source, Unread
from kvledger.errors import AuditError

Progress = Callable[[int], None]


def read_logs(paths: Iterable[str | Path], progress: Progress | None = None) -> Iterator[Record | Unread]:
    """Stream the records of files, folders (all files in them) and ledgers (files or URLs).

    `progress` is told of bytes as they are read.
    Each item's form is seen by its fields, so a folder or a file may mix forms. A record whose id came before replaces
    the earlier one: whoever keeps records keeps the last of an id. It is given only if it is as complete; a mere copy
    is left out, and one with other figures is told of beside it. Raises `AuditError` for a path that is not there.
    """
    yield from _in_rows(_once(_all(paths, progress)))


def files(paths: Iterable[str | Path]) -> list[str | Path]:
    """The files and URLs that are read, folders spread out in the order of their names."""
    found: list[str | Path] = []
    for path in paths:
        if "://" in str(path):
            found.append(str(path))
            continue
        place = Path(path)
        if not place.exists():
            raise AuditError(f"There is no log {path}: give a file, a folder of logs, or a ledger's URL.")
        inside = sorted(p for p in place.rglob("*") if p.is_file() and not p.name.startswith("."))
        found += inside if place.is_dir() else [place]
    return found


@dataclass(frozen=True, slots=True)
class _Seen:
    source: Source
    complete: bool
    figures: int | None
    has_body: bool


def _once(records: Iterable[Record | Unread]) -> Iterator[Record | Unread]:
    seen: dict[tuple[str, str], _Seen] = {}
    for record in records:
        if isinstance(record, Unread) or record.id is None:
            yield record
            continue
        now = _Seen(record.source, record.complete, _figures(record), record.body is not None)
        before = seen.get((record.provider, record.id))
        if before is not None:
            if (before.figures, before.has_body) == (now.figures, now.has_body):
                continue
            poorer = (before.figures is not None and now.figures is None) or (before.has_body and not now.has_body)
            if (before.complete and not now.complete) or poorer:
                continue
            if before.complete and before.figures not in (None, now.figures):
                place = f"{now.source.file}:{now.source.line}"
                yield Unread(
                    before.source,
                    f"response {record.id:.80} stands again, with other figures, at {place}: that counts.",
                )
        seen[record.provider, record.id] = now
        yield record


def _in_rows(records: Iterable[Record | Unread]) -> Iterator[Record | Unread]:
    """What cannot be read for one reason in a row of lines is told once, with the first of them."""
    held: Unread | None = None
    for record in records:
        if held is not None:
            if isinstance(record, Unread) and (record.source.file, record.reason) == (held.source.file, held.reason):
                held = replace(held, count=held.count + record.count)
                continue
            yield held
            held = None
        if isinstance(record, Unread):
            held = record
        else:
            yield record
    if held is not None:
        yield held


def _figures(record: Record) -> int | None:
    usage = record.usage
    if usage is None:
        return None
    split = usage.split
    return hash(
        (split.prompt_tokens, split.read, tuple(sorted(split.written.items())), usage.output, usage.service_tier)
    )


def _all(paths: Iterable[str | Path], progress: Progress | None) -> Iterator[Record | Unread]:
    readers: tuple[Reader, ...] = (
        HarReader(),
        OtelReader(),
        LiteLLMReader(),
        ClaudeCodeReader(),
        CodexReader(),
        ReceiptReader(),
        LangfuseReader(),
        BatchReader(),
        ExchangeReader(),
        UsageReader(),
    )
    for path in files(paths):
        if isinstance(path, str) or _is_database(path):
            yield from ledger_records(str(path))
            continue
        yield from _file(path, readers, progress)
        for reader in readers:
            yield from reader.end_file()
    for reader in readers:
        yield from reader.end()


def _file(path: Path, readers: tuple[Reader, ...], progress: Progress | None) -> Iterator[Record | Unread]:
    name, is_empty = str(path), True
    for item in items(path, progress):
        is_empty = False
        source = Source(name, item.line)
        if isinstance(item, Broken):
            yield Unread(source, item.reason)
        elif not isinstance(item.value, Mapping):
            yield Unread(source, f"a JSON {type(item.value).__name__}, not an object.")
        else:
            yield from _read(item.value, source, readers)
    if is_empty:
        yield Unread(Source(name, 0), "the file is empty.")


def _read(item: Json, source: Source, readers: tuple[Reader, ...]) -> Iterator[Record | Unread]:
    try:
        reader = next((reader for reader in readers if reader.claims(item)), None)
        if reader is None:
            shown = ", ".join(list(item)[:6]) or "no fields"
            yield Unread(source, f"an object of no known form (its fields: {shown:.120}).")
        else:
            yield from reader.read(item, source)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        # A log can hold any JSON at any place; checking every type on the way would cost more than this.
        yield Unread(source, f"fields of a type that no such log has ({error!s:.120}).")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE
