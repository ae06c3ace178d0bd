"""Codex rollouts: events of a session, among them the token counts of each request.

They hold the conversation, not the requests as sent: records have usage and no body. A count is written again where
nothing new was asked; the session's running total tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvledger.audit.readers.fields import Json, first_text, seconds
from kvledger.audit.readers.reader import Found, recorded
from kvledger.audit.record import Source, Unread

_TYPES = frozenset(("session_meta", "turn_context", "event_msg", "response_item", "compacted"))


class CodexReader:
    def __init__(self) -> None:
        self._session = ""
        self._model = ""
        self._asked: float | None = None
        self._total = -1

    def claims(self, item: Json) -> bool:
        return item.get("type") in _TYPES and isinstance(item.get("payload"), Mapping)

    def read(self, item: Json, source: Source) -> Found:
        payload = item["payload"]
        at = seconds(item.get("timestamp"))
        if item["type"] == "session_meta":
            self._session = first_text(payload, ("id",)) or source.file
        elif item["type"] == "turn_context":
            self._model = first_text(payload, ("model",)) or self._model
        elif payload.get("type") == "token_count":
            yield from self._count(payload, at, source)
            self._asked = at
        elif payload.get("type") in ("user_message", "function_call_output", "custom_tool_call_output"):
            self._asked = at

    def end_file(self) -> Found:
        self._session, self._model, self._asked, self._total = "", "", None, -1
        yield from ()

    def end(self) -> Found:
        yield from ()

    def _count(self, payload: Json, at: float | None, source: Source) -> Found:
        info = payload.get("info")
        if not isinstance(info, Mapping) or not isinstance(info.get("last_token_usage"), Mapping):
            return  # rate limits alone
        total = info.get("total_token_usage")
        running = total.get("total_tokens") if isinstance(total, Mapping) else None
        if running is not None and running == self._total:
            return
        if not self._model:
            yield Unread(source, "a token count before any turn names its model.")
            return
        self._total = running if isinstance(running, int) else -1
        last: dict[str, Any] = dict(info["last_token_usage"])
        usage = {
            "input_tokens": last.get("input_tokens"),
            "input_tokens_details": {"cached_tokens": last.get("cached_input_tokens") or 0},
            "output_tokens": last.get("output_tokens") or 0,
            "output_tokens_details": {"reasoning_tokens": last.get("reasoning_output_tokens") or 0},
        }
        yield from recorded(
            source,
            named="openai",
            api="responses",
            model=self._model,
            usage=usage,
            id=f"{self._session}:{running}" if self._session and running is not None else None,
            at=self._asked if self._asked is not None else at,
            began=at,
            conversation=self._session or source.file,
        )
