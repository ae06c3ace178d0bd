"""The database that receipts and keys live in: SQLite in a file, or PostgreSQL by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, create_engine, event, text
from sqlalchemy.engine import URL, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from kvledger.errors import LedgerError

tables = MetaData()
"""What the database holds; each table is declared where it is used."""

_LOCK = 0x6B766C64
"""PostgreSQL's advisory lock for creating the tables: "kvld"."""


class Database:
    """One database. Any number of processes and threads may use it at once.

    SQLite keeps a write-ahead log and forces every commit to the disk: what is committed survives the end of the
    process and of the machine.
    """

    def __init__(self, where: str | Path, *, create: bool = True) -> None:
        """Open `where`, a file or a URL (`postgresql://...`); `create` makes file and tables if they are not there.

        Raises `LedgerError`, which says what is wrong with it.
        """
        url = _url(where)
        self.name = url.render_as_string() if _is_server(url) else str(url.database)
        """For messages: without the password."""
        if not _is_server(url):
            path = Path(url.database or "")
            if not create and not path.exists():
                raise LedgerError(f"There is no ledger at {path}: name another with --ledger.")
            if create:
                path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._engine = _engine(url)
        except ModuleNotFoundError as error:
            raise LedgerError(
                "A ledger in PostgreSQL needs the package psycopg: pip install 'kvledger[postgres]'."
            ) from error
        if create:
            with self.write() as connection:
                if _is_server(url):
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                tables.create_all(connection)

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that writes: committed at the end, undone on an error. SQLite's writers wait for each other."""
        with self._connection({"kvledger_begin": "BEGIN IMMEDIATE"}) as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees the database as it was at its first statement, whatever others write."""
        options: dict[str, Any] = {"kvledger_begin": "BEGIN"}
        if self._engine.dialect.name == "postgresql":
            options["isolation_level"] = "REPEATABLE READ"
        with self._connection(options) as connection:
            yield connection

    @contextmanager
    def _connection(self, options: dict[str, Any]) -> Iterator[Connection]:
        try:
            with self._engine.connect().execution_options(**options) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise LedgerError(f"The ledger {self.name} cannot be used: {reason}.") from error


def _url(where: str | Path) -> URL:
    if isinstance(where, Path) or "://" not in where:
        return URL.create("sqlite", database=str(where))
    try:
        url = make_url(where)
        if url.drivername in ("postgres", "postgresql"):
            url = url.set(drivername="postgresql+psycopg")
        name = url.get_backend_name()
    except (ArgumentError, NoSuchModuleError) as error:
        raise LedgerError(f"{where!r} is no address of a ledger: give a file or postgresql://host/database.") from error
    if name not in ("sqlite", "postgresql"):
        raise LedgerError(f"A ledger cannot live in {name}: give a file or postgresql://host/database.")
    if name == "sqlite" and url.database in (None, "", ":memory:"):
        raise LedgerError("A ledger in memory would be lost with the process: give a file.")
    return url


def _is_server(url: URL) -> bool:
    return url.get_backend_name() == "postgresql"


def _engine(url: URL) -> Engine:
    if _is_server(url):
        return create_engine(url, pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False})

    def connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # transactions begin where `begun` says, not where sqlite3 thinks
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("kvledger_begin", "BEGIN"))

    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begun)
    return engine
