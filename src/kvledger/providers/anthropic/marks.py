"""Where `cache_control` may stand, and what the top-level one does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvledger.errors import InvalidRequestError
from kvledger.providers.anthropic.editions import rules
from kvledger.providers.prompt import Breakpoint, Part

THINKING = frozenset(("thinking", "redacted_thinking"))
"""Blocks that are cached as part of a turn and never carry a mark."""


def read_mark(value: Any, path: str) -> Breakpoint | None:
    """A `cache_control` value found at `path`; raises `InvalidRequestError` if it is none."""
    if value is None:
        return None
    marks = rules().marks
    if not isinstance(value, dict) or value.get("type") != "ephemeral":
        raise InvalidRequestError(f'`{path}` must be {{"type": "ephemeral"}}, with a `ttl` or without.', param=path)
    ttl = value.get("ttl") or marks.default
    if ttl not in marks.lifetimes:
        known = " or ".join(marks.lifetimes)
        raise InvalidRequestError(f"`{path}.ttl` must be {known}, not {str(ttl)[:20]!r}.", param=f"{path}.ttl")
    return Breakpoint(ttl)


def explicit_mark(block: Mapping[str, Any], path: str, kind: str, content: str) -> Breakpoint | None:
    """The mark that a block carries itself; raises `InvalidRequestError` on one that cannot carry any."""
    place = f"{path}.cache_control"
    mark = read_mark(block.get("cache_control"), place)
    if mark is not None and not _can_carry(kind, content):
        what = "an empty text" if kind == "text" else f"a {kind} block"
        raise InvalidRequestError(f"`{path}` is {what}, which cannot carry `cache_control`: mark another.", param=place)
    return mark


def refuse_nested_marks(block: Mapping[str, Any], path: str) -> None:
    """Refuse marks on what stands within a block. Schemas and tool inputs are the caller's own and may say anything."""
    source = block.get("source")
    within = {"content": block.get("content"), "citations": block.get("citations")}
    if isinstance(source, dict):
        within["source.content"] = source.get("content")
    for name, items in within.items():
        for index, item in enumerate(items if isinstance(items, list) else ()):
            if isinstance(item, dict) and item.get("cache_control") is not None:
                place = f"{path}.{name}[{index}].cache_control"
                raise InvalidRequestError(
                    f"`{place}` marks a part of a block, which is cached only as a whole: mark `{path}`.", param=place
                )


def place_marks(parts: tuple[Part, ...], automatic: Breakpoint | None) -> tuple[Part, ...]:
    """Check the explicit marks and set the automatic one, on the last part that can carry it.

    Raises `InvalidRequestError` for more marks than allowed, for a part marked with two lifetimes, and for a longer
    lifetime behind a shorter one.
    """
    most = rules().marks.most
    marked = [part for part in parts if part.breakpoint]
    if len(marked) + (automatic is not None) > most:
        extra = f"{marked[most].path}.cache_control" if len(marked) > most else "cache_control"
        beside = " and an automatic one" if automatic else ""
        raise InvalidRequestError(
            f"A request may hold up to {most} marks with `cache_control`; this has {len(marked)}{beside}.", param=extra
        )
    if automatic is not None:
        parts = _with_automatic(parts, automatic)
    shortest: Part | None = None
    for part in parts:
        if part.breakpoint is None:
            continue
        if shortest and shortest.breakpoint and _lifetime(part.breakpoint) > _lifetime(shortest.breakpoint):
            raise InvalidRequestError(
                f"`{part.path}` has a `cache_control` of {part.breakpoint.ttl} behind one of {shortest.breakpoint.ttl}"
                f" (`{shortest.path}`): put longer lifetimes first, in the order tools, system, messages.",
                param=f"{part.path}.cache_control.ttl",
            )
        shortest = part
    return parts


def _with_automatic(parts: tuple[Part, ...], automatic: Breakpoint) -> tuple[Part, ...]:
    for index in reversed(range(len(parts))):
        part = parts[index]
        if not _can_carry(part.kind, part.content):
            continue
        if part.breakpoint and part.breakpoint != automatic:
            raise InvalidRequestError(
                f"The top-level `cache_control` of {automatic.ttl} falls on `{part.path}`, which is marked with"
                f" {part.breakpoint.ttl}: use one lifetime for both.",
                param="cache_control",
            )
        return (*parts[:index], replace(part, breakpoint=automatic), *parts[index + 1 :])
    return parts


def _can_carry(kind: str, content: str) -> bool:
    return kind not in THINKING and not (kind == "text" and not content)


def _lifetime(mark: Breakpoint) -> int:
    return rules().marks.lifetimes[mark.ttl]
