"""What a reader of one form of log can do, and how it makes a record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from kvledger.audit.readers.bodies import body_for
from kvledger.audit.readers.fields import Json, own_api, provider_name, usage_of
from kvledger.audit.record import Record, Source, Unread
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage

Found = Iterator[Record | Unread]


class Reader(Protocol):
    """Reads the items of one form, in the order of the log; one reader serves all files of an audit."""

    def claims(self, item: Json) -> bool:
        """Whether an item is of this form, by its fields."""
        ...

    def read(self, item: Json, source: Source) -> Found:
        """The records of an item; it may wait for later items."""
        ...

    def end_file(self) -> Found:
        """What waited for more of its file."""
        ...

    def end(self) -> Found:
        """What waited for other files."""
        ...


class Stateless:
    """The ends of a reader that never waits."""

    def end_file(self) -> Found:
        yield from ()

    def end(self) -> Found:
        yield from ()


def recorded(
    source: Source,
    *,
    named: Any,
    api: str,
    model: Any,
    usage: Any = None,
    body: Json | None = None,
    **others: Any,
) -> Found:
    """A record from raw values; usage that cannot be true is told beside a record without it.

    `usage` is a raw usage object or a `Usage`; `others` are the remaining fields of the record.
    """
    model = model if isinstance(model, str) else ""
    try:
        if not model and not named:
            raise InvalidRequestError("it names neither a model nor a provider.")
        provider = provider_name(named, model, api)
    except InvalidRequestError as error:
        yield Unread(source, str(error))
        return
    if body is not None:
        body = body_for(provider, api, body)
    told: Usage | None = None
    if isinstance(usage, Usage):
        told = usage
    elif usage is not None:
        try:
            told = usage_of(provider, own_api(provider, api), usage)
        except InvalidRequestError as error:
            yield Unread(source, f"{error} The request counts without its usage.")
    if body is None and told is None:
        if usage is None:
            yield Unread(source, "it has neither a request body nor usage: there is nothing to audit.")
        return
    yield Record(source, provider, own_api(provider, api), model, body=body, usage=told, **others)
