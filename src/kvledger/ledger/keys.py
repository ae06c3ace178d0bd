"""API keys: made, listed, revoked and found again. Only their hashes are kept."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from hashlib import sha256
from typing import Any

from sqlalchemy import Column, Double, Integer, Row, Table, Text, insert, select, update

from kvledger.errors import InvalidRequestError
from kvledger.ledger.database import Database, tables
from kvledger.ledger.money import plain

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_keys = Table(
    "keys",
    tables,
    Column("name", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("digest", Text, nullable=False, unique=True),
    Column("budget", Text),
    Column("rate", Integer),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it is known here. `digest` is the SHA-256 of it in hexadecimal: a key is 256 random bits, which nobody
    can guess from that, so no slow hash is needed.

    `tenant` is whose prompts it may share cached KV with. `budget` is US dollars per calendar month (UTC), `rate`
    requests per minute; None is no limit. Times are seconds since the Unix epoch.
    """

    name: str
    tenant: str
    digest: str
    budget: Decimal | None
    rate: int | None
    created_at: float
    revoked_at: float | None = None


class KeyRing:
    """The keys that open the door, as they were when this was made."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = tuple(key for key in keys if key.revoked_at is None)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def find(self, presented: bytes) -> Key | None:
        """The key that was presented, or None.

        All are compared, each in constant time, so the time taken tells nothing about any.
        """
        digest = sha256(presented).hexdigest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


class KeyStore:
    """The keys of a database, which may be that of the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, name: str, at: float, *, tenant: str = "", budget: Decimal | None = None, rate: int | None = None
    ) -> str:
        """Make a key and return it: this is the only time that it can be seen. The tenant is `name` unless given.

        Raises `InvalidRequestError` for a name that is taken, even by a revoked key, since receipts name keys; or a
        limit that is none.
        """
        if not _NAME.fullmatch(name):
            raise InvalidRequestError(
                f"{name!r} cannot name a key: use 1 to 64 letters, digits, dots, dashes or underscores.", param="name"
            )
        if budget is not None and not (budget.is_finite() and budget > 0):
            raise InvalidRequestError(f"A budget of {budget} dollars is none: give more than 0, or leave it out.")
        if rate is not None and rate < 1:
            raise InvalidRequestError(f"A rate of {rate} requests per minute is none: give 1 or more, or leave it out.")
        secret = "kvl_" + secrets.token_urlsafe(32)
        values = {
            "name": name,
            "tenant": tenant or name,
            "digest": sha256(secret.encode()).hexdigest(),
            "budget": None if budget is None else plain(budget),
            "rate": rate,
            "created_at": at,
        }
        with self._database.write() as connection:
            if connection.execute(select(_keys.c.name).where(_keys.c.name == name)).first():
                raise InvalidRequestError(f"There is a key {name} already: take another name.", param="name")
            connection.execute(insert(_keys).values(values))
        return secret

    def all(self) -> list[Key]:
        """Every key, the revoked ones too, in the order of their making."""
        with self._database.read() as connection:
            return [_key(row) for row in connection.execute(select(_keys).order_by(_keys.c.created_at, _keys.c.name))]

    def ring(self) -> KeyRing:
        """The keys that are valid now. Keys made or revoked later need another call."""
        return KeyRing(self.all())

    def revoke(self, name: str, at: float) -> None:
        """Close a key for good; raises `InvalidRequestError` if there is none of that name, or it is closed already."""
        with self._database.write() as connection:
            changed = connection.execute(
                update(_keys).where(_keys.c.name == name, _keys.c.revoked_at.is_(None)).values(revoked_at=at)
            )
        if not changed.rowcount:
            raise InvalidRequestError(f"There is no valid key {name}: `kvledger keys list` shows them.", param="name")


def _key(row: Row[Any]) -> Key:
    budget = None if row.budget is None else Decimal(row.budget)
    return Key(row.name, row.tenant, row.digest, budget, row.rate, row.created_at, row.revoked_at)
