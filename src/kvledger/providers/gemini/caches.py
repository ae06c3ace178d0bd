"""Explicit caches, Gemini's `cachedContents`: created, named by requests, extended, deleted, and paid by the hour."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from kvledger.clock import Clock
from kvledger.errors import CachedContentNotFoundError, InvalidRequestError
from kvledger.providers.dialect import Asked
from kvledger.providers.gemini.contents import read_chat
from kvledger.providers.gemini.fields import decode_body
from kvledger.providers.gemini.generate import no_tools
from kvledger.providers.gemini.reply import json_body
from kvledger.providers.gemini.rules import GeminiRules
from kvledger.text.chat import Chat

DEFAULT_SECONDS = 3600.0
PAGE = 50
MAX_PAGE = 1000
HELD = ("systemInstruction", "contents", "tools", "toolConfig")

_DURATION = re.compile(r"(?P<seconds>\d{1,12}(\.\d{1,9})?)s")


@dataclass(frozen=True, slots=True)
class Draft:
    """A checked request to create a cached content. `lifetime` (seconds) or `expires_at` (Unix time) is None.

    `body` holds what a rulebook reads (`model` and `HELD`), `chat` the same for the template that counts its tokens.
    """

    model: str
    chat: Chat
    body: Mapping[str, Any]
    display_name: str
    lifetime: float | None
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class CachedContent:
    """One explicit cache. Times are seconds since the epoch; it can be used until `expires_at`, included."""

    name: str
    scope: str
    model: str
    chat: Chat
    body: Mapping[str, Any]
    display_name: str
    tokens: int
    created_at: float
    updated_at: float
    expires_at: float

    def resource(self) -> dict[str, Any]:
        """What Google's API shows of it: everything but the content."""
        shown: dict[str, Any] = {"name": self.name, "model": f"models/{self.model}"}
        if self.display_name:
            shown["displayName"] = self.display_name
        return {
            **shown,
            "createTime": _timestamp(self.created_at),
            "updateTime": _timestamp(self.updated_at),
            "expireTime": _timestamp(self.expires_at),
            "usageMetadata": {"totalTokenCount": self.tokens},
        }

    def encoded(self) -> bytes:
        return json_body(self.resource())


@dataclass(frozen=True, slots=True)
class Storage:
    """What keeping a cached content has come to since it was last asked: tokens times seconds, rounded down, the rest
    kept for the next time."""

    name: str
    scope: str
    model: str
    token_seconds: int


@dataclass(slots=True)
class Kept:
    """A cached content with what was told of its storage, and its end if it was deleted."""

    content: CachedContent
    told: int = 0
    deleted_at: float | None = None

    def alive(self, now: float) -> bool:
        return self.deleted_at is None and now <= self.content.expires_at

    def token_seconds(self, now: float) -> int:
        """What was kept until `now`, or until the end if that was earlier."""
        end = min(self.content.expires_at, now if self.deleted_at is None else self.deleted_at)
        return int(self.content.tokens * max(0.0, end - self.content.created_at))


class CachedContents:
    """The explicit caches of all scopes (tenant, project): another scope's cannot be told from one that never was.

    A hit does not renew a cached content; only `update` does. Storage is counted until it is deleted or expires.
    Nothing here is safe to use from several threads at once.
    """

    def __init__(self, clock: Clock, rules: GeminiRules) -> None:
        self._clock = clock
        self._rules = rules
        self._kept: dict[str, Kept] = {}

    def create(self, draft: Draft, *, scope: str, id: str, tokens: int) -> CachedContent:
        """Store a draft of `tokens` tokens as `cachedContents/ID`; raises for fewer than the model's minimum, for a
        model with implicit caching only, and for a time that has passed."""
        now = self._clock.now()
        edition = self._rules.edition(draft.model, now)
        if edition.implicit_only:
            raise InvalidRequestError(
                f"{draft.model} has implicit caching only: leave the cached content out, or use another model.",
                param="model",
            )
        if tokens < edition.minimum:
            raise InvalidRequestError(
                f"Cached content is too small. total_token_count={tokens}, min_total_token_count={edition.minimum}",
                param="contents",
            )
        content = CachedContent(
            name=f"cachedContents/{id}",
            scope=scope,
            model=draft.model,
            chat=draft.chat,
            body=draft.body,
            display_name=draft.display_name,
            tokens=tokens,
            created_at=now,
            updated_at=now,
            expires_at=self._expiry(draft.lifetime, draft.expires_at, now),
        )
        self._kept[content.name] = Kept(content)
        return content

    def get(self, name: str, *, scope: str) -> CachedContent:
        """Raises `CachedContentNotFoundError` for one that was never there, has expired, or is another scope's."""
        return self._alive(name, scope).content

    def list(self, *, scope: str, size: int | None = None, token: str = "") -> tuple[Sequence[CachedContent], str]:
        """A page of what is alive, newest last, and the token of the next page ("" for none)."""
        size = size or PAGE
        if size < 0 or not (token.isascii() and (token.isdecimal() or not token)):
            raise InvalidRequestError("`pageSize` or `pageToken` is not one of ours.", param="pageToken")
        now, start = self._clock.now(), int(token or 0)
        alive = [kept.content for kept in self._kept.values() if kept.content.scope == scope and kept.alive(now)]
        end = start + min(size, MAX_PAGE)
        return alive[start:end], str(end) if end < len(alive) else ""

    def update(self, name: str, raw: bytes, *, scope: str) -> CachedContent:
        """Set a new `ttl` (from now on) or `expireTime`; raises for any other field."""
        kept, body = self._alive(name, scope), decode_body(raw)
        for field, value in body.items():
            if field not in ("ttl", "expireTime", "name") and value is not None:
                raise InvalidRequestError(f"`{field}` cannot be changed: only ttl and expireTime can.", param=field)
        lifetime, expires_at = _lifetime(body)
        if lifetime is None and expires_at is None:
            raise InvalidRequestError("`ttl` or `expireTime` is required: nothing else can be changed.", param="ttl")
        now = self._clock.now()
        kept.content = replace(kept.content, updated_at=now, expires_at=self._expiry(lifetime, expires_at, now))
        return kept.content

    def delete(self, name: str, *, scope: str) -> None:
        """Raises like `get`. Its storage can still be asked for, once."""
        self._alive(name, scope).deleted_at = self._clock.now()

    def storage(self) -> Sequence[Storage]:
        """What has come to be paid since the last call; who asks keeps the books. Forgets what has ended."""
        now, charges = self._clock.now(), []
        for name, kept in list(self._kept.items()):
            content, total = kept.content, kept.token_seconds(now)
            if total > kept.told:
                charges.append(Storage(name, content.scope, content.model, total - kept.told))
                kept.told = total
            if not kept.alive(now):
                del self._kept[name]
        return charges

    def _alive(self, name: str, scope: str) -> Kept:
        kept = self._kept.get(name)
        if kept is None or kept.content.scope != scope or not kept.alive(self._clock.now()):
            raise CachedContentNotFoundError(
                f"There is no cached content `{name[:80]}` (or it has expired, or belongs to somebody else):"
                " create it anew."
            )
        return kept

    @staticmethod
    def _expiry(lifetime: float | None, expires_at: float | None, now: float) -> float:
        end = now + (DEFAULT_SECONDS if lifetime is None else lifetime) if expires_at is None else expires_at
        if end <= now:
            raise InvalidRequestError(
                "`expireTime` has passed: give one in the future, or a `ttl`.", param="expireTime"
            )
        return end


def parse_draft(raw: bytes) -> Draft:
    """Check the body of `POST /v1beta/cachedContents`."""
    body = decode_body(raw)
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequestError("`model` is required: models/NAME.", param="model")
    if not any(body.get(field) for field in ("contents", "systemInstruction", "tools")):
        raise InvalidRequestError("`contents` is required: there is nothing to cache.", param="contents")
    display_name = body.get("displayName") or ""
    if not isinstance(display_name, str) or len(display_name) > 128:
        raise InvalidRequestError("`displayName` must be a string of up to 128 characters.", param="displayName")
    chat = read_chat(body)
    if no_tools(body):
        chat = Chat(chat.messages)
    model = model.removeprefix("models/")
    held = {"model": model, **{field: body[field] for field in HELD if body.get(field) is not None}}
    return Draft(model, chat, held, display_name, *_lifetime(body))


def with_cache(asked: Asked, cached: CachedContent) -> Asked:
    """The request with what the cached content holds in front of its own; raises where the models differ."""
    if asked.model != cached.model:
        raise InvalidRequestError(
            f"The request's model ({asked.model}) and that of the cached content ({cached.model}) must be the same.",
            param="cachedContent",
        )
    held = {**cached.body, "name": cached.name, "expireTime": _timestamp(cached.expires_at)}
    front = tuple(replace(message, path=f"cachedContent.{message.path}") for message in cached.chat.messages)
    chat = Chat((*front, *asked.chat.messages), cached.chat.tools)
    return replace(asked, chat=chat, body={**asked.body, "cachedContent": held})


def encoded_page(contents: Sequence[CachedContent], next_token: str) -> bytes:
    """The answer of `GET /v1beta/cachedContents`."""
    page: dict[str, Any] = {"cachedContents": [content.resource() for content in contents]} if contents else {}
    return json_body({**page, "nextPageToken": next_token} if next_token else page)


def _lifetime(body: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """`ttl` in seconds and `expireTime` as Unix time, of which one at most may be given."""
    ttl, expires = body.get("ttl"), body.get("expireTime")
    if ttl is not None and expires is not None:
        raise InvalidRequestError("`ttl` and `expireTime` exclude each other: give one.", param="ttl")
    if ttl is not None:
        match = _DURATION.fullmatch(ttl) if isinstance(ttl, str) else None
        if match is None or not (seconds := float(match["seconds"])):
            raise InvalidRequestError(f'`ttl` must be seconds such as "300s", not {ttl!r:.40}.', param="ttl")
        return seconds, None
    if expires is None:
        return None, None
    try:
        moment = datetime.fromisoformat(expires)
    except (TypeError, ValueError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequestError(
            f"`expireTime` must be a time with its zone, such as 2026-11-30T12:00:00Z, not {expires!r:.40}.",
            param="expireTime",
        )
    return None, moment.timestamp()


def _timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
