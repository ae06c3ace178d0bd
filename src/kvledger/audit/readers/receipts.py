"""This program's own ledger: the database, or its receipts exported as JSON. Receipts hold no bodies."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from kvledger.audit.readers.fields import Json
from kvledger.audit.readers.reader import Found, Stateless
from kvledger.audit.record import Record, Source, Unread
from kvledger.ledger.receipt import Receipt


class ReceiptReader(Stateless):
    def claims(self, item: Json) -> bool:
        return "version" in item and "account" in item and "bill" in item

    def read(self, item: Json, source: Source) -> Found:
        try:
            yield _record(Receipt.decoded(msgspec.json.encode(item)), source)
        except (ValueError, msgspec.ValidationError) as error:
            yield Unread(source, f"no receipt of this program ({error}).")


def ledger_records(address: str) -> Iterator[Record | Unread]:
    """The receipts of a ledger in a database, by file or URL, in its order."""
    from kvledger.ledger.store import Ledger  # noqa: PLC0415 (a database is opened only when it is asked for)

    name = address.rpartition("@")[2] if "://" in address else address  # no password in a report
    for row in Ledger(address, create=False).rows():
        yield _record(row.receipt, Source(name, row.seq))


def _record(receipt: Receipt, source: Source) -> Record:
    return Record(
        source,
        receipt.provider,
        receipt.api,
        receipt.model,
        id=receipt.id,
        at=receipt.at,
        began=None if receipt.ttft is None else receipt.at + receipt.ttft,
        key="/".join(name for name in (receipt.tenant, receipt.key) if name) or None,
        usage=receipt.usage,
    )
