"""A private PostgreSQL server for the tests: in a folder of its own, on a socket, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoServerError(Exception):
    """PostgreSQL cannot be started here; the message says why."""


@contextmanager
def postgres_server() -> Iterator[str]:
    """The folder of the socket of a running server; it and its data are gone afterwards."""
    initdb = _program("initdb")
    user = _user()
    with tempfile.TemporaryDirectory(prefix="kvl-pg-") as folder:
        if user is not None:
            os.chown(folder, user, -1)
        data = f"{folder}/data"
        _run([initdb, "--pgdata", data, "--username", "tests", "--auth", "trust", "--no-sync"], user)
        # A test's server need not survive the machine, only itself.
        settings = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        control = [str(Path(initdb).with_name("pg_ctl")), "--pgdata", data, "--wait"]
        _run([*control, "--log", f"{folder}/log", "--options", settings, "start"], user)
        try:
            yield folder
        finally:
            _run([*control, "--mode", "immediate", "stop"], user)


def _program(name: str) -> str:
    """The program, on the path or where Debian keeps it, the newest version first; links are followed to its folder."""
    found = shutil.which(name)
    places = (
        [Path(found).resolve()] if found else sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    )
    if not places:
        raise NoServerError("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    return str(places[0])


def _user() -> int | None:
    """Whom to run the server as: it refuses root. None is whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise NoServerError("there is no unprivileged user to run PostgreSQL as")


def _run(command: list[str], user: int | None) -> None:
    # The server's output must not keep a pipe of ours open.
    with tempfile.TemporaryFile() as output:
        done = subprocess.run(command, user=user, stdout=output, stderr=output, cwd="/", check=False, timeout=60)
        output.seek(0)
        if done.returncode:
            raise NoServerError(f"{Path(command[0]).name} failed: {output.read().decode(errors='replace')[-300:]}")
