"""Every test of the store runs on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from tests.ledger.databases import NoServerError, postgres_server

_numbers = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The socket folder of a running server; skips, with the reason, where none can be started."""
    server = postgres_server()
    try:
        folder = server.__enter__()
    except NoServerError as error:
        pytest.skip(str(error))
    try:
        yield folder
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    folder = request.getfixturevalue("postgres")
    name = f"ledger{next(_numbers)}"
    engine = create_engine(f"postgresql+psycopg://tests@/postgres?host={folder}", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return f"postgresql://tests@/{name}?host={folder}"
