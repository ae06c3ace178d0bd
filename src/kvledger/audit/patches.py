"""RFC 6902 patches on a request body, made from paths such as `messages[0].content[1]`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvledger.audit.request import Request
from kvledger.audit.volatile import Span
from kvledger.providers.prompt import Level, Part

Patch = tuple[Mapping[str, Any], ...]

_ITEM = re.compile(r"^(.*)\[(\d+)\]$")


def pointer(path: str) -> str:
    """The JSON pointer (RFC 6901) of a path. Names with dots do not occur in the bodies that we read."""
    steps = re.findall(r"[^.\[\]]+", path)
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def mark(request: Request, part: Part, ttl: str = "") -> Patch:
    """A cache mark on a part; a string becomes a list of one block, since only a block can carry one."""
    if request.provider in ("openai", "azure"):
        name, value = "prompt_cache_breakpoint", {"mode": "explicit", **({"ttl": ttl} if ttl else {})}
    else:
        name, value = "cache_control", {"type": "ephemeral", **({"ttl": ttl} if ttl else {})}
    if part.path.endswith("]"):
        return ({"op": "add", "path": f"{pointer(part.path)}/{name}", "value": value},)
    kind = "input_text" if request.api == "responses" else "text"
    block = {"type": kind, "text": part.content, name: value}
    return ({"op": "replace", "path": pointer(part.path), "value": [block]},)


def unmark(request: Request, parts: Sequence[Part]) -> Patch:
    """No mark on any part."""
    name = "prompt_cache_breakpoint" if request.provider in ("openai", "azure") else "cache_control"
    marked = [part for part in parts if part.breakpoint]
    if request.automatic:
        marked = marked[:-1]
    top = ({"op": "remove", "path": "/cache_control"},) if request.automatic else ()
    return (*top, *({"op": "remove", "path": f"{pointer(part.path)}/{name}"} for part in marked))


def longer(request: Request, parts: Sequence[Part], ttl: str) -> Patch:
    """Every mark with another lifetime."""
    marked = [part for part in parts if part.breakpoint]
    top: Patch = ()
    if request.automatic:
        top = ({"op": "add", "path": "/cache_control", "value": {"type": "ephemeral", "ttl": ttl}},)
        marked = [part for part in marked[:-1] if part.path.endswith("]")]
    return (*top, *(op for part in marked for op in mark(request, part, ttl)))


def moved_behind(request: Request, part: Part, change: Span) -> Patch:
    """The changing span as a message of its own at the end, and the text without it."""
    if part.kind != "text":
        return ()
    static, moving = change.static(part.content), change.moving(part.content)
    place = pointer(part.path) + ("/text" if part.path.endswith("]") else "")
    message: dict[str, Any] = {"role": "user", "content": moving}
    end = "/input/-" if request.api == "responses" else "/messages/-"
    if request.provider in ("gemini", "vertex"):
        message, end = {"role": "user", "parts": [{"text": moving}]}, "/contents/-"
    first: dict[str, Any] = {"op": "replace", "path": place, "value": static}
    if not static and part.path.endswith("]"):
        first = {"op": "remove", "path": pointer(part.path)}
    return (first, {"op": "add", "path": end, "value": message})


def in_order(parts: Sequence[Part], wanted: Sequence[Part]) -> Patch:
    """Moves that bring items of one list, each of one part, into another order."""
    parts, wanted = [part for part in parts if part.tokens], [part for part in wanted if part.tokens]
    places = [_ITEM.match(re.sub(r"\.content$|\.parts\[0\]$", "", part.path)) for part in parts]
    parents = {place[1] for place in places if place}
    if len(parents) != 1 or not all(places):
        return ()
    numbers = [int(place[2]) for place in places if place]
    parent, now, moves = pointer(parents.pop()), list(parts), list[Mapping[str, Any]]()
    for index, part in enumerate(wanted):
        at = next(i for i in range(index, len(now)) if now[i].content == part.content)
        if at != index:
            moves.append({"op": "move", "from": f"{parent}/{numbers[at]}", "path": f"{parent}/{numbers[index]}"})
            now.insert(index, now.pop(at))
    return tuple(moves)


def sorted_tools(parts: Sequence[Part]) -> Patch:
    tools = [part for part in parts if part.level is Level.TOOLS]
    return in_order(tools, sorted(tools, key=lambda part: part.content))


def sorted_keys(part: Part) -> Patch:
    """One part's JSON with its keys in alphabetical order, member by member so that a mark on it stays."""
    try:
        value = msgspec.json.decode(part.content)
    except msgspec.DecodeError:
        return ()
    ordered = msgspec.json.decode(msgspec.json.encode(value, order="sorted"))
    return ({"op": "replace", "path": pointer(part.path), "value": ordered},)


def setting(path: str, value: str | None) -> Patch:
    """A parameter beside the prompt as it was before; `value` is JSON text, None removes it."""
    if value is None:
        return ({"op": "remove", "path": pointer(path)},)
    try:
        plain = msgspec.json.decode(value)
    except msgspec.DecodeError:
        plain = value
    return ({"op": "add", "path": pointer(path), "value": plain},)
