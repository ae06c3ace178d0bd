"""Receipts as a table for other programs: CSV and Parquet with one row each, JSON with all that they hold."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TextIO

from kvledger.errors import InvalidRequestError, LedgerError
from kvledger.ledger.bill import LineKind
from kvledger.ledger.money import plain
from kvledger.ledger.receipt import Receipt
from kvledger.ledger.store import LedgerRow

FORMATS = ("csv", "json", "parquet")

_SCALE = 18
"""Decimal places of money in Parquet: the finest price of half a cent per million tokens has fewer."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: Literal["count", "text", "seconds", "time", "money"]
    value: Callable[[Receipt], Any]


def _usd(kind: LineKind) -> Callable[[Receipt], Decimal | None]:
    return lambda receipt: receipt.bill.usd(kind)


COLUMNS = (
    _Column("id", "text", lambda receipt: receipt.id),
    _Column("at", "time", lambda receipt: datetime.fromtimestamp(receipt.at, UTC)),
    _Column("tenant", "text", lambda receipt: receipt.tenant),
    _Column("key", "text", lambda receipt: receipt.key),
    _Column("provider", "text", lambda receipt: receipt.provider),
    _Column("api", "text", lambda receipt: receipt.api),
    _Column("model", "text", lambda receipt: receipt.model),
    _Column("answered_by", "text", lambda receipt: receipt.answered_by),
    _Column("service_tier", "text", lambda receipt: receipt.usage.service_tier),
    _Column("prompt_tokens", "count", lambda receipt: receipt.usage.split.prompt_tokens),
    _Column("read_tokens", "count", lambda receipt: receipt.usage.split.read),
    _Column("written_tokens", "count", lambda receipt: receipt.usage.split.written_tokens),
    _Column("fresh_tokens", "count", lambda receipt: receipt.usage.split.fresh),
    _Column("reused_tokens", "count", lambda receipt: receipt.reused_tokens),
    _Column("output_tokens", "count", lambda receipt: receipt.usage.output),
    _Column("reasoning_tokens", "count", lambda receipt: receipt.usage.reasoning),
    _Column("breaks", "text", lambda receipt: " ".join(one.reason.value for one in receipt.account.breaks)),
    _Column("miss", "text", lambda receipt: receipt.miss),
    _Column("finish_reason", "text", lambda receipt: receipt.finish_reason),
    _Column("ttft", "seconds", lambda receipt: receipt.ttft),
    _Column("queued", "seconds", lambda receipt: receipt.queued),
    _Column("prefill", "seconds", lambda receipt: receipt.prefill),
    _Column("decode", "seconds", lambda receipt: receipt.decode),
    _Column("kv_byte_seconds", "seconds", lambda receipt: receipt.kv_byte_seconds),
    *(_Column(f"{kind.value}_usd", "money", _usd(kind)) for kind in LineKind),
    _Column("total_usd", "money", lambda receipt: receipt.bill.total),
    _Column("unknown", "text", lambda receipt: "; ".join(receipt.bill.unknown)),
    _Column("prices", "text", lambda receipt: receipt.bill.edition),
)


def export_format(to: str, wanted: str | None) -> str:
    """The format asked for, or the one that the file's ending says; raises `InvalidRequestError` if neither does."""
    ending = Path(to).suffix.removeprefix(".").lower()
    chosen = wanted or (ending if ending in FORMATS else "json" if ending == "jsonl" else None)
    if chosen is None:
        near = get_close_matches(ending, FORMATS, n=1)
        hint = f" Did you mean .{near[0]}?" if near else ""
        raise InvalidRequestError(f"{to} does not say which format: end it in .csv, .json or .parquet.{hint}")
    if chosen == "parquet" and to == "-":
        raise InvalidRequestError("Parquet cannot go to standard output: give a file.")
    return chosen


def write_csv(rows: Iterable[LedgerRow], file: TextIO) -> None:
    """A table with a heading: times in ISO 8601, money in plain decimal notation, nothing where it is unknown."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", *(column.name for column in COLUMNS), "digest"])
    for row in rows:
        cells = (_cell(column.value(row.receipt)) for column in COLUMNS)
        writer.writerow([row.seq, *cells, row.digest])


def write_json(rows: Iterable[LedgerRow], file: TextIO) -> None:
    """One JSON array, one whole receipt a line."""
    separator = "[\n"
    for row in rows:
        file.write(separator + row.receipt.encoded().decode())
        separator = ",\n"
    file.write("[]\n" if separator == "[\n" else "\n]\n")


def write_parquet(rows: Iterable[LedgerRow], path: Path) -> None:
    """The table of `write_csv` with types: UTC times, 64-bit counts, money as decimals of 18 places."""
    try:
        import polars  # noqa: PLC0415 (an extra)
    except ModuleNotFoundError as error:
        raise LedgerError("Parquet needs the package polars: pip install 'kvledger[parquet]'.") from error
    types: dict[str, Any] = {
        "count": polars.Int64,
        "text": polars.String,
        "seconds": polars.Float64,
        "time": polars.Datetime("us", "UTC"),
        "money": polars.Decimal(38, _SCALE),
    }
    schema = {"row": polars.Int64, **{column.name: types[column.kind] for column in COLUMNS}, "digest": polars.String}
    table = [[row.seq, *(column.value(row.receipt) for column in COLUMNS), row.digest] for row in rows]
    polars.DataFrame(table, schema=schema, orient="row").write_parquet(path)


def _cell(value: Any) -> Any:
    if isinstance(value, Decimal):
        return plain(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return "" if value is None else value
