"""Reading request bodies within limits: of one body, and of all that are held at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.requests import Request

from kvledger.api.errors import Refusal
from kvledger.errors import OverloadedError

KIB = 1024
MIB = 1024 * KIB


class Bodies:
    """Counts the bytes of every body between its arrival and the end of its parsing. Used on the event loop only."""

    def __init__(
        self, *, limit: int = 8 * MIB, total: int = 64 * MIB, small: int = 64 * KIB, seconds: float = 30
    ) -> None:
        """Bodies up to `small` bytes are read however much is held: large ones must not lock them out."""
        self.limit = limit
        self.total = total
        self.small = small
        self.seconds = seconds
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The whole JSON body, counted as held while the context lasts.

        Raises `Refusal` with 415, 413 or 408, and `OverloadedError` where others hold too much; whatever the client
        still sends after that is read and dropped by the server, so that the client gets to see the answer.
        """
        self._check_type(request.headers.get("content-type", ""))
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.limit:
            raise self._too_large()
        body = bytearray()
        try:
            try:
                async with asyncio.timeout(self.seconds):
                    async for chunk in request.stream():
                        body += chunk
                        self._held += len(chunk)
                        self._check_size(len(body))
            except TimeoutError:
                raise Refusal(
                    HTTPStatus.REQUEST_TIMEOUT,
                    f"The request body did not arrive within {self.seconds:g} seconds: send it again.",
                    code="request_timeout",
                ) from None
            yield bytes(body)
        finally:
            self._held -= len(body)

    def _check_size(self, size: int) -> None:
        if size > self.limit:
            raise self._too_large()
        if self._held > self.total and size > self.small:
            raise OverloadedError("Too many large requests are being read: try again shortly.", retry_after=1)

    def _too_large(self) -> Refusal:
        return Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The request body is larger than {self.limit // MIB} MiB: shorten the messages.",
            code="request_too_large",
        )

    @staticmethod
    def _check_type(content_type: str) -> None:
        """Only JSON; besides being clearer, it keeps a web page from posting here behind its reader's back."""
        if content_type.partition(";")[0].strip().lower() != "application/json":
            raise Refusal(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                "The body must be JSON, announced by the header `Content-Type: application/json`.",
                code="unsupported_media_type",
            )
