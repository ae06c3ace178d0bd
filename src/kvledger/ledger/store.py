"""The ledger: receipts in a database, each row chained to the one before by digest; rows are added, never changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    Row,
    Select,
    Table,
    Text,
    insert,
    select,
    update,
)

from kvledger.errors import LedgerConflictError, LedgerError
from kvledger.ledger.database import Database, tables
from kvledger.ledger.money import plain, total
from kvledger.ledger.receipt import Receipt

_PERSON = b"kvl-ledger-1"

GENESIS = blake2b(digest_size=32, person=_PERSON).hexdigest()
"""What the first row is chained to."""

_VERSION = 1

_rows = Table(
    "receipts",
    tables,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("id", Text, nullable=False, unique=True),
    Column("at", Double, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("usd", Text),
    Column("receipt", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("digest", Text, nullable=False),
    Index("receipts_at", "at"),
    Index("receipts_key_at", "key", "at"),
)

_head = Table(
    "head",
    tables,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("rows", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
)
"""One row: how many receipts there are, and the digest of the last. Locking it is what keeps several writers on one
chain; and without it a ledger whose last rows were cut off would look whole."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """A receipt in its place. `digest` covers it and, through the row before, everything before it."""

    seq: int
    receipt: Receipt
    digest: str


@dataclass(frozen=True, slots=True)
class Filter:
    """Which receipts: begun from `since` (seconds since the epoch) until before `until`, of a tenant, of a model as it
    was asked for. None is no condition."""

    since: float | None = None
    until: float | None = None
    tenant: str | None = None
    model: str | None = None

    def apply(self, query: Select[Any]) -> Select[Any]:
        if self.since is not None:
            query = query.where(_rows.c.at >= self.since)
        if self.until is not None:
            query = query.where(_rows.c.at < self.until)
        if self.tenant is not None:
            query = query.where(_rows.c.tenant == self.tenant)
        if self.model is not None:
            query = query.where(_rows.c.model == self.model)
        return query


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that `verify` found. `seq` is the row, or the first of the rows that are missing."""

    seq: int
    kind: Literal["altered", "missing", "reordered"]
    detail: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` says: how many rows there are, the digest of the last, and what is wrong (nothing: all is whole).

    Whoever keeps count and digest elsewhere can tell later that even a ledger rewritten from end to end is another.
    """

    rows: int
    digest: str
    faults: tuple[Fault, ...]


class Ledger:
    """The receipts of one database. Threads may share it."""

    def __init__(self, where: str | Path | Database, *, create: bool = True) -> None:
        """Open the ledger at a file or URL; see `Database`, whose errors it raises."""
        self._database = where if isinstance(where, Database) else Database(where, create=create)
        if create:
            with self._database.write() as connection:
                if connection.execute(select(_head)).first() is None:
                    connection.execute(insert(_head).values(version=_VERSION, rows=0, digest=GENESIS))

    def close(self) -> None:
        self._database.close()

    def append(self, receipts: Sequence[Receipt]) -> None:
        """Add receipts, all or none, in this order; they are on the disk when this returns.

        A receipt that is there already is not added again, so whoever does not know how an earlier call ended can
        repeat it. One whose id is there with other contents raises `LedgerConflictError`.
        """
        encoded: dict[str, tuple[Receipt, str]] = {}
        for receipt in receipts:
            text = receipt.encoded().decode()
            if encoded.setdefault(receipt.id, (receipt, text))[1] != text:
                raise LedgerConflictError(f"There are two different receipts of request {receipt.id}: each has one.")
        with self._database.write() as connection:
            count, digest = self._locked_head(connection)
            ids = list(encoded)
            for start in range(0, len(ids), 500):
                part = select(_rows.c.id, _rows.c.receipt).where(_rows.c.id.in_(ids[start : start + 500]))
                for id, text in connection.execute(part):
                    if encoded.pop(id)[1] != text:
                        raise LedgerConflictError(f"The ledger has another receipt of request {id}: each has one.")
            values = []
            for receipt, text in encoded.values():
                count, previous, digest = count + 1, digest, row_digest(digest, text)
                columns = _columns(receipt)
                values.append({"seq": count, **columns, "receipt": text, "previous": previous, "digest": digest})
            if values:
                connection.execute(insert(_rows), values)
                connection.execute(update(_head).values(rows=count, digest=digest))

    def rows(self, only: Filter | None = None, *, last: int | None = None) -> Iterator[LedgerRow]:
        """Receipts in the order of the chain, the `last` ones only if a number is given. Nothing is verified."""
        query = (only or Filter()).apply(select(_rows.c.seq, _rows.c.receipt, _rows.c.digest))
        if last is not None:
            newest = query.order_by(_rows.c.seq.desc()).limit(last).subquery()
            query = select(newest).order_by(newest.c.seq)
        else:
            query = query.order_by(_rows.c.seq)
        with self._database.read() as connection:
            for row in _stream(connection, query):
                try:
                    yield LedgerRow(row.seq, Receipt.decoded(row.receipt.encode()), row.digest)
                except (ValueError, msgspec.DecodeError) as error:
                    raise LedgerError(f"Row {row.seq} of {self._database.name} holds no receipt: {error}.") from error

    def spent(self, key: str, since: float) -> Decimal:
        """US dollars that receipts of a key say since then (seconds since the epoch); unknown prices count nothing."""
        query = select(_rows.c.usd).where(_rows.c.key == key, _rows.c.at >= since, _rows.c.usd.is_not(None))
        with self._database.read() as connection:
            return total([Decimal(row.usd) for row in _stream(connection, query)])

    def verify(self) -> Verified:
        """Check every row against its digest and its neighbours, and the end against what was written last."""
        faults: list[Fault] = []
        expected, previous = 1, GENESIS
        with self._database.read() as connection:
            head = connection.execute(select(_head)).first()
            for row in _stream(connection, select(_rows).order_by(_rows.c.seq)):
                linked = row.seq == expected and previous
                if row.seq > expected:
                    faults.append(_missing(expected, row.seq - 1))
                if changed := _changed(row):
                    faults.append(Fault(row.seq, "altered", f"row {row.seq} was altered: {changed}"))
                elif linked and row.previous != previous:
                    faults.append(self._misplaced(row))
                # After an altered row nothing can be said about what the next one follows.
                expected, previous = row.seq + 1, "" if changed else row.digest
            count = expected - 1
            if head is None:
                faults.append(Fault(count, "missing", "the record of the ledger's end is missing"))
            elif head.rows > count:
                faults.append(_missing(expected, head.rows))
            elif head.rows < count or (previous and head.digest != previous):
                detail = f"row {count} is not the one that was written last, as row {head.rows}"
                faults.append(Fault(count, "altered", detail))
        return Verified(count, previous or GENESIS, tuple(faults))

    def _misplaced(self, row: Row[Any]) -> Fault:
        with self._database.read() as connection:
            parent = connection.execute(select(_rows.c.seq).where(_rows.c.digest == row.previous)).scalar()
        if parent is None and row.previous != GENESIS:
            detail = (
                f"row {row.seq} does not continue row {row.seq - 1}, which was replaced, or a row between is missing"
            )
            return Fault(row.seq - 1, "altered", detail)
        follows = "the beginning" if parent is None else f"row {parent}"
        return Fault(row.seq, "reordered", f"row {row.seq} is out of order: it was written after {follows}")

    def _locked_head(self, connection: Connection) -> tuple[int, str]:
        head = connection.execute(select(_head).with_for_update()).first()
        if head is None:
            raise LedgerError(f"{self._database.name} lacks the record of the ledger's end: verify it.")
        if head.version != _VERSION:
            raise LedgerError(f"{self._database.name} is a ledger of version {head.version}; this is {_VERSION}.")
        return head.rows, head.digest


def row_digest(previous: str, receipt: str) -> str:
    """BLAKE2b-256 over the digest of the row before (fixed length) and the encoded receipt, in hexadecimal."""
    return blake2b(previous.encode() + receipt.encode(), digest_size=32, person=_PERSON).hexdigest()


def _columns(receipt: Receipt) -> dict[str, Any]:
    """What a receipt is looked up by; all of it is in the receipt."""
    usd = receipt.bill.total
    return {
        "id": receipt.id,
        "at": receipt.at,
        "tenant": receipt.tenant,
        "key": receipt.key,
        "model": receipt.model,
        "usd": None if usd is None else plain(usd),
    }


def _changed(row: Row[Any]) -> str:
    """What of a row does not fit the rest of it; empty if all does."""
    if row_digest(row.previous, row.receipt) != row.digest:
        return "its contents do not have its digest"
    try:
        columns = _columns(Receipt.decoded(row.receipt.encode()))
    except (ValueError, msgspec.DecodeError) as error:
        return f"it holds no receipt ({error})"
    wrong = [name for name, value in columns.items() if getattr(row, name) != value]
    return f"its {' and '.join(wrong)} is not the receipt's" if wrong else ""


def _missing(first: int, last: int) -> Fault:
    what = f"row {first} is" if first == last else f"rows {first} to {last} are"
    return Fault(first, "missing", f"{what} missing")


def _stream(connection: Connection, query: Select[Any]) -> Iterator[Row[Any]]:
    return iter(connection.execution_options(yield_per=1000).execute(query))
