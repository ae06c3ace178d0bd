"""Claude Code's transcripts: a line for each block of an answer, all with the response's id and usage.

They hold the conversation, not the requests as sent (no system text, tools or marks): records have usage and no body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvledger.audit.readers.fields import Json, first_text, seconds
from kvledger.audit.readers.reader import Found, recorded
from kvledger.audit.record import Source

_PASSED = frozenset(("user", "system", "summary", "file-history-snapshot", "queue-operation", "progress", "attachment"))


@dataclass(slots=True)
class _Pending:
    """The lines of one response so far: its first line's times and its last complete line."""

    source: Source
    line: Json
    at: float | None
    began: float | None
    complete: bool


class ClaudeCodeReader:
    """Gives a response once its lines have ended. A request began when the line before its answer was written."""

    def __init__(self) -> None:
        self._pending: dict[str, _Pending] = {}
        self._asked: dict[str, float | None] = {}

    def claims(self, item: Json) -> bool:
        if "sessionId" in item and item.get("type") in _PASSED:
            return True
        return (item.get("type") == "assistant" and isinstance(item.get("message"), Mapping) and "uuid" in item) or (
            item.get("type") in ("summary", "file-history-snapshot") and ("leafUuid" in item or "messageId" in item)
        )

    def read(self, item: Json, source: Source) -> Found:
        session = first_text(item, ("agentId",)) if item.get("isSidechain") else None
        session = session or first_text(item, ("sessionId",)) or ""
        at = seconds(item.get("timestamp"))
        message = item.get("message")
        if item.get("type") != "assistant" or not isinstance(message, Mapping):
            if item.get("type") == "user":
                self._asked[session] = at
            return
        if message.get("model") == "<synthetic>":
            return  # written by the program itself: no request
        identity = first_text(message, ("id",)) or first_text(item, ("requestId", "uuid")) or ""
        complete = message.get("stop_reason") is not None
        known = self._pending.get(identity)
        if known is None:
            asked = self._asked.pop(session, None)
            self._pending[identity] = _Pending(source, item, asked if asked is not None else at, at, complete)
        elif complete or not known.complete:
            known.line, known.complete, known.source = item, complete, source
        yield from ()

    def end_file(self) -> Found:
        for identity, pending in self._pending.items():
            item = pending.line
            message = item["message"]
            yield from recorded(
                pending.source,
                named=None,
                api="messages",
                model=message.get("model"),
                usage=message.get("usage"),
                id=identity or None,
                at=pending.at,
                began=pending.began,
                conversation=first_text(item, ("agentId", "sessionId") if item.get("isSidechain") else ("sessionId",)),
                complete=pending.complete,
            )
        self._pending.clear()
        self._asked.clear()

    def end(self) -> Found:
        yield from ()
