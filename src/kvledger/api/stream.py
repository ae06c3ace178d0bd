"""A response that is sent piece by piece."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvledger.api.errors import Failure, describe
from kvledger.errors import KvledgerError

log = logging.getLogger(__name__)


class EventStream(Response):
    """Sends `first`, then each batch of encoded events that `rest` yields, one write per batch.

    An error in the middle ends the stream with the events that `broken` makes of it.
    """

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        broken: Callable[[Failure], bytes],
    ) -> None:
        self.first = first
        self.rest = rest
        self.broken = broken
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", **headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await write(self.first)
            async for batch in self.rest:
                await write(batch)
        except ClientDisconnect:
            return
        except Exception as error:
            if not isinstance(error, KvledgerError):
                log.exception("a stream broke")
            await write(self.broken(describe(error)))
        finally:
            await self.rest.aclose()
        await write(b"", more=False)
