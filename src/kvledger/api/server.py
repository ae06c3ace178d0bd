"""The listening socket, and a server that ends well."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from kvledger.errors import KvledgerError

if sys.platform != "win32":
    import resource

UNREAD_TIMEOUT = 60
"""Seconds that a client may leave the data sent to it unread, or its network lose it, before it counts as gone."""

KEEP_ALIVE = 75
SWITCH_INTERVAL = 0.0005
"""Seconds after which a thread has to let others run Python."""
"""Seconds an idle connection is kept; longer than clients keep theirs, so that it is they who close it."""


class AddressError(KvledgerError):
    """The server cannot listen where it was told to."""


def bind(host: str, port: int) -> socket.socket:
    """A TCP socket at `host`:`port` that does not listen yet; raises `AddressError`. Port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise AddressError(f"The host {host!r} is unknown: give an address of this machine with --host.") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; inherited by every connection
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_TIMEOUT * 1000)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _address_error(host, port, error) from None
    return listener


def listen(listener: socket.socket) -> None:
    """Start to take connections, as many as the system permits this process; raises `AddressError` where somebody else
    was faster."""
    if sys.platform != "win32":
        with suppress(ValueError, OSError):  # the usual limit of 1,024 open files is soon reached
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(2048)
    except OSError as error:
        raise _address_error(host, port, error) from None


def _address_error(host: str, port: int, error: OSError) -> AddressError:
    if error.errno == errno.EADDRINUSE:
        return AddressError(
            f"Port {port} on {host} is in use by another program: stop that, or choose another port with --port."
        )
    if error.errno == errno.EACCES:
        return AddressError(f"Port {port} needs more rights than you have: choose one above 1023 with --port.")
    if error.errno == errno.EADDRNOTAVAIL:
        return AddressError(f"{host} is no address of this machine: give one with --host.")
    return AddressError(f"Cannot listen on {host}, port {port}: {error.strerror}.")


class Server(uvicorn.Server):
    """Uvicorn with an orderly end: on SIGTERM or Ctrl-C the engine finishes what runs while the connections that wait
    for it stay open. A second Ctrl-C gives up on them."""

    def __init__(self, app: Starlette, *, close_engine: Callable[[float], None], drain: float) -> None:
        """`close_engine(seconds)` lets running work go on for that long and fails the rest; it may block."""
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(drain) + 5,
            )
        )
        # The engine thread comes back from its kernels every few milliseconds and must not wait as long for the
        # interpreter: Python's own 5 ms would be most of a step.
        sys.setswitchinterval(SWITCH_INTERVAL)
        self._close_engine = close_engine
        self._drain = drain
        self.interrupted = False
        """Ctrl-C, rather than SIGTERM, ended the server."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        closing = threading.Thread(target=self._close_engine, args=(self._drain,), name="close-engine", daemon=True)
        closing.start()
        await super().shutdown(sockets)
        await asyncio.to_thread(closing.join, 0 if self.force_exit else 5)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but without raising the signal again at the end: an orderly end is an exit code of 0."""

        def stop(number: int, frame: FrameType | None) -> None:
            self.interrupted |= number == signal.SIGINT
            self.handle_exit(number, frame)

        if threading.current_thread() is not threading.main_thread():  # elsewhere signals never arrive
            yield
            return
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
