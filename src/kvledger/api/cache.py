"""`/v1/cache`: what is cached, its events, and clearing it.

The cache is the engine thread's, so whatever is asked here is read there, between two steps; what takes long (decoding
excerpts, reading files) is done elsewhere. A caller sees and clears its own tenant; operators, everybody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import Response

from kvledger.api.auth import Caller, short
from kvledger.api.errors import Refusal
from kvledger.api.service import Service
from kvledger.cache import PromptCache, invariants
from kvledger.cache.disk import DiskTier, find_problem
from kvledger.cache.events import Cleared, Event, Removed, Stored
from kvledger.cache.outline import Stretch, outline, resident_digests
from kvledger.errors import InvalidRequestError
from kvledger.text.tokenizer import Tokenizer

EXCERPT_TOKENS = 48
"""Tokens from the beginning of a stretch that are shown as text."""

EVENTS_AT_ONCE = 1000

T = TypeVar("T")


async def show_cache(request: Request) -> Response:
    """The cached prefixes as a tree, depth first; to operators, the tiers as well."""
    service: Service = request.app.state.service
    caller = service.keys.viewer(request)
    now = service.clock.now()

    def read(cache: PromptCache) -> tuple[list[Stretch], dict[str, Any]]:
        return list(outline(cache, now, None if caller.is_operator else caller.tenant)), _tiers(cache)

    def render() -> bytes:
        stretches, tiers = service.engine.with_cache(read)
        prefixes = [_prefix(stretch, tiers["ram"]["bytes_per_block"], service.tokenizer) for stretch in stretches]
        body: dict[str, Any] = {"object": "cache"}
        if caller.is_operator:
            body["tiers"] = tiers
        return msgspec.json.encode(body | {"prefixes": prefixes})

    return Response(await asyncio.to_thread(render), media_type="application/json")


async def clear_cache(request: Request) -> Response:
    """Forget what is cached, in all tiers."""
    service: Service = request.app.state.service
    caller = service.keys.viewer(request)

    def clear(cache: PromptCache) -> None:
        if caller.is_operator:
            cache.clear()
        else:
            cache.clear(replace(service.engine.namespace, tenant=caller.tenant))

    await _visit(service, clear)
    return _json({"object": "cache.cleared", "tenant": _told(caller)})


class Cache(HTTPEndpoint):
    """`GET` and `DELETE` of `/v1/cache`."""

    get = staticmethod(show_cache)
    delete = staticmethod(clear_cache)


async def verify_cache(request: Request) -> Response:
    """Check every invariant of the cache and every checksum on disk. For operators."""
    service: Service = request.app.state.service
    service.keys.operator(request)
    problems, files = await _visit(service, lambda cache: (list(invariants.problems(cache)), _files(cache)))
    broken = await asyncio.to_thread(lambda: {path: problem for path in files if (problem := find_problem(path))})
    if broken:  # a file may have made room for others while it was to be read
        still_there = set(await _visit(service, _files))
        problems += [problem for path, problem in broken.items() if path in still_there]
    return _json({"object": "cache.verified", "files": len(files), "problems": problems})


async def list_events(request: Request) -> Response:
    """What happened to full blocks in RAM after event `since`, or, without it, what is there now. For operators.

    The numbers count everybody's events, so to a tenant the gaps in its own would tell about the others.
    """
    service: Service = request.app.state.service
    service.keys.operator(request)
    since = _since(request)

    def read(cache: PromptCache) -> tuple[int, list[Event] | None]:
        log = cache.events
        if log is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "This server keeps no cache events.")
        if since is None:
            return log.last, [Stored(log.last, parent, digests) for parent, digests in resident_digests(cache)]
        events = log.since(since)
        return log.last, None if events is None else events[:EVENTS_AT_ONCE]

    last, events = await _visit(service, read)
    if events is None:
        raise Refusal(
            HTTPStatus.GONE,
            f"The events after {since} are not kept any more, the newest is {last}: start again without `since`.",
            param="since",
            code="events_gone",
        )
    return _json(
        {
            "object": "cache.events",
            "started": service.started,
            "last": last,
            "snapshot": since is None,
            "events": [_event(event) for event in events],
        }
    )


async def _visit(service: Service, visit: Callable[[PromptCache], T]) -> T:
    return await asyncio.to_thread(service.engine.with_cache, visit)


def _since(request: Request) -> int | None:
    text = request.query_params.get("since")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidRequestError("`since` must be the number of an event, or 0.", param="since")
    return int(text)


def _tiers(cache: PromptCache) -> dict[str, Any]:
    pool, lower = cache.pool, cache.lower
    tiers: dict[str, Any] = {
        "ram": {
            "bytes": (pool.ready + pool.idle) * cache.bytes_per_block,
            "limit_bytes": pool.num_blocks * cache.bytes_per_block,
            "bytes_per_block": cache.bytes_per_block,
            "tokens_per_block": cache.block_size,
            "blocks": {"free": pool.free, "owned": pool.owned, "ready": pool.ready, "idle": pool.idle},
        }
    }
    if lower is not None:
        tiers["disk"] = {"bytes": lower.tier.bytes_held}
        if isinstance(lower.tier, DiskTier):
            tiers["disk"] |= {
                "limit_bytes": lower.tier.limit_bytes,
                "blocks": len(lower.tier),
                "unwritten_bytes": lower.tier.bytes_unwritten + lower.num_waiting * cache.bytes_per_block,
            }
    return tiers


def _files(cache: PromptCache) -> list[Path]:
    lower = cache.lower
    return lower.tier.files() if lower is not None and isinstance(lower.tier, DiskTier) else []


def _prefix(stretch: Stretch, bytes_per_block: int, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "tenant": short(stretch.namespace.tenant),
        "depth": stretch.depth,
        "position": stretch.position,
        "tokens": len(stretch.tokens),
        "blocks": stretch.num_blocks,
        "bytes": stretch.num_blocks * bytes_per_block,
        "hits": stretch.hits,
        "age_s": round(stretch.age, 3),
        "idle_s": round(stretch.idle, 3),
        "expires_s": None if stretch.expires is None else round(stretch.expires, 3),
        "pinned_blocks": stretch.num_pinned,
        "text": tokenizer.decode(stretch.tokens[:EXCERPT_TOKENS]),
    }


def _event(event: Event) -> dict[str, Any]:
    match event:
        case Stored():
            return {
                "number": event.number,
                "kind": "stored",
                "parent": event.parent.hex(),
                "blocks": [digest.hex() for digest in event.digests],
            }
        case Removed():
            return {
                "number": event.number,
                "kind": "removed",
                "reason": event.reason.value,
                "blocks": [digest.hex() for digest in event.digests],
            }
        case Cleared():
            return {"number": event.number, "kind": "cleared"}


def _told(caller: Caller) -> str | None:
    """Whose entries were meant: None for everybody's."""
    return None if caller.is_operator else short(caller.tenant)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
