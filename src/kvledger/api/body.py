"""Reading request bodies within limits: of one body, and of all that are held at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from starlette.requests import Request

from kvledger.api.errors import Refusal
from kvledger.errors import OverloadedError

MIB = 1024 * 1024


class Bodies:
    """Counts the bytes of every body between its arrival and the end of its parsing. Used on the event loop only."""

    def __init__(self, *, limit: int = 8 * MIB, total: int = 64 * MIB) -> None:
        self.limit = limit
        self.total = total
        self._held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The whole JSON body, counted as held while the context lasts.

        Raises `Refusal` with 415 or 413, and `OverloadedError` where others hold too much; whatever the client still
        sends after that is read and dropped by the server, so that the client gets to see the answer.
        """
        self._check_type(request.headers.get("content-type", ""))
        declared = request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.limit:
            raise self._too_large()
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self._held += len(chunk)
                if len(body) > self.limit:
                    raise self._too_large()
                if self._held > self.total:
                    raise OverloadedError("Too many large requests are being read: try again shortly.", retry_after=1)
            yield bytes(body)
        finally:
            self._held -= len(body)

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
