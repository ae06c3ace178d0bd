"""One request of a log, whatever form the log had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvledger.ledger.account import Usage


@dataclass(frozen=True, slots=True)
class Source:
    """Where a record stands: the file as named on the command line, and its line or item, counted from 1."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Record:
    """A request and what became of it. None means that the log does not say.

    `provider` and `api` are names that `providers.catalogue` knows. `at` is when the request began, in seconds since
    the Unix epoch, and `began` when its response did. `id` is the response's own, the one that split lines and retries
    share. `key` (workspace, API key name, organisation: the cache's isolation as far as the log tells) and
    `conversation` group requests. `body` is the request as sent, `usage` the provider's counters, and `output` what the
    answer adds to a conversation, as the provider's own message (for chains by `previous_response_id`).
    `complete` is False for a snapshot of a response that was still running. A later record of the same provider and id
    replaces the earlier one.
    """

    source: Source
    provider: str
    api: str
    model: str
    id: str | None = None
    at: float | None = None
    began: float | None = None
    key: str | None = None
    conversation: str | None = None
    body: Mapping[str, Any] | None = None
    usage: Usage | None = None
    output: Any = None
    complete: bool = True


@dataclass(frozen=True, slots=True)
class Unread:
    """A line or file that could not be read, and why, in one sentence. `count` lines in a row can share a reason."""

    source: Source
    reason: str
    count: int = 1
