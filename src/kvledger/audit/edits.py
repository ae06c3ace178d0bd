"""Changes of prompts, as the remedies make them: each is a function that a replay applies to every request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from kvledger.audit.lineage import Kin
from kvledger.audit.replay import Edit
from kvledger.audit.request import Request
from kvledger.audit.volatile import Span
from kvledger.providers.prompt import Breakpoint, Level, Part, ProviderPrompt

MOST_MARKS = 4
"""Cache marks that a request may hold, with every provider that has them."""

LONGER = {"5m": "1h", "30m": "12h"}
"""The longer lifetime that can be asked for in place of the shorter."""


def with_parts(prompt: ProviderPrompt, parts: Iterable[Part]) -> ProviderPrompt:
    return replace(prompt, parts=tuple(parts))


def moved_behind(path: str, change: Span, like: str) -> Edit:
    """The changing span of the part at `path` goes to the end of the prompt, from every text that is otherwise `like`
    that one. A span of nothing is the whole part."""
    head = like[: change.before]
    tail = like[len(like) - change.after :] if change.after else ""
    whole = not head and not tail

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        for index, part in enumerate(prompt.parts):
            if part.path != path:
                continue
            text = part.content
            fits = len(text) >= len(head) + len(tail) and text.startswith(head) and text.endswith(tail)
            if not fits:
                return prompt
            kept = 0 if whole else part.tokens * (len(head) + len(tail)) // max(1, len(text))
            moving = Part(f"{path}.moved", Level.MESSAGES, "text", change.moving(text), part.tokens - kept, "user")
            static = replace(part, content=head + tail, tokens=kept)
            before = prompt.parts[:index] if whole else (*prompt.parts[:index], static)
            return with_parts(prompt, (*before, *prompt.parts[index + 1 :], moving))
        return prompt

    return edit


def sorted_tools(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
    """The tools in the order of their JSON, which begins with the same words whatever order they were sent in."""
    tools = sorted((part for part in prompt.parts if part.level is Level.TOOLS), key=lambda part: part.content)
    marks = [part.breakpoint for part in prompt.parts if part.level is Level.TOOLS]
    placed = [replace(part, breakpoint=mark) for part, mark in zip(tools, marks, strict=True)]
    return with_parts(prompt, (*placed, *(part for part in prompt.parts if part.level is not Level.TOOLS)))


def sorted_keys(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
    """All JSON with its keys in alphabetical order."""
    return with_parts(prompt, (replace(part, content=keys_sorted(part.content)) for part in prompt.parts))


def keys_sorted(content: str) -> str:
    if not content.startswith(("{", "[")):
        return content
    try:
        return msgspec.json.encode(msgspec.json.decode(content), order="sorted").decode()
    except msgspec.DecodeError:
        return content


def in_order_of(reference: Sequence[Part]) -> Edit:
    """Pieces in the order in which they first came (parts of the same text, or the paragraphs of one), with a mark on
    the last of them where the prompt is cached by marks."""
    wanted = [(part.kind, part.role, part.content) for part in reference]
    places = {identity: place for place, identity in enumerate(wanted)}
    paragraphs = {tuple(sorted(_paragraphs(part.content))): part.content for part in reference}

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        parts = [_in_place_of(part, paragraphs) for part in prompt.parts]
        slots = [index for index, part in enumerate(parts) if (part.kind, part.role, part.content) in places]
        moved = sorted((parts[index] for index in slots), key=lambda part: places[part.kind, part.role, part.content])
        for index, part in zip(slots, moved, strict=True):
            parts[index] = replace(part, breakpoint=prompt.parts[index].breakpoint)
        marks = sum(part.breakpoint is not None for part in parts)
        if slots and marks < MOST_MARKS and (marks or "prompt_cache_options.mode" in prompt.settings):
            last = parts[slots[-1]]
            parts[slots[-1]] = replace(last, breakpoint=last.breakpoint or Breakpoint(ttl_of(prompt, "30m")))
        return with_parts(prompt, parts)

    return edit


def appended_only(kins: Sequence[Kin], losers: Mapping[int, Request]) -> Edit:
    """Each rewritten history stays as it was sent before, with what is new behind it. `losers` are the earlier requests
    by the index of the one that rewrote them. Works on all requests in the order of time."""
    kept: dict[int, tuple[Part, ...]] = {}
    seen: dict[int, tuple[Part, ...]] = {}

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        seen[request.index] = prompt.parts
        kin, earlier = kins[request.index], losers.get(request.index)
        before = earlier.index if earlier is not None else kin.earlier
        if earlier is None and before not in kept:
            return prompt
        old = seen.get(before, ())
        have = Counter((part.kind, part.role, part.content) for part in old)
        base, tail = kept.get(before, old), []
        for part in prompt.parts:
            identity = (part.kind, part.role, part.content)
            if have[identity] > 0:
                have[identity] -= 1
            else:
                tail.append(part)
        marked = next((part.breakpoint for part in reversed(prompt.parts) if part.breakpoint), None)
        parts = [replace(part, breakpoint=None) if part.breakpoint else part for part in (*base, *tail)]
        if marked and parts:
            parts[-1] = replace(parts[-1], breakpoint=marked)
        kept[request.index] = tuple(parts)
        return with_parts(prompt, parts)

    return edit


def with_setting(path: str, value: str | None) -> Edit:
    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        settings = {name: text for name, text in prompt.settings.items() if name != path}
        return replace(prompt, settings=settings if value is None else {**settings, path: value})

    return edit


def on_first_model(requests: Sequence[Request]) -> Edit:
    """Every conversation stays with the model that it began with."""
    first: dict[tuple[str, str], str] = {}
    for request in requests:
        first.setdefault((request.key, request.conversation), request.model)

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        return replace(prompt, model=first[request.key, request.conversation])

    return edit


def marked_at(prefixes: Iterable[tuple[int, ...]], ttl: str) -> Edit:
    """A mark more at the longest of these prefixes (part numbers) that a prompt begins with; where four are set
    already, in place of the last one."""
    wanted = set(prefixes)
    lengths = sorted({len(prefix) for prefix in wanted}, reverse=True)

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        found = [n for n in lengths if n <= len(request.ids) and request.ids[:n] in wanted][:2]
        parts = list(prompt.parts)
        for length in found:
            place = length - 1
            if parts[place].breakpoint is None:
                marks = [index for index, part in enumerate(parts) if part.breakpoint]
                if len(marks) >= MOST_MARKS:
                    parts[marks[-1]] = replace(parts[marks[-1]], breakpoint=None)
                parts[place] = replace(parts[place], breakpoint=Breakpoint(ttl_of(prompt, ttl)))
        return with_parts(prompt, parts)

    return edit


def ttl_of(prompt: ProviderPrompt, default: str) -> str:
    """The lifetime that the prompt's marks ask for, of several the longest-lived, which come first."""
    return next((part.breakpoint.ttl for part in prompt.parts if part.breakpoint), default)


def longer_lived(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
    """Everything asked for with the longer lifetime that the provider sells."""
    parts = [
        replace(part, breakpoint=Breakpoint(LONGER.get(part.breakpoint.ttl, part.breakpoint.ttl)))
        if part.breakpoint
        else part
        for part in prompt.parts
    ]
    settings = dict(prompt.settings)
    if prompt.provider in ("openai", "azure"):
        if "prompt_cache_options.ttl" in settings:
            settings["prompt_cache_options.ttl"] = "12h"
        else:
            settings["prompt_cache_retention"] = '"24h"'
    return replace(prompt, parts=tuple(parts), settings=settings)


def unmarked(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
    """No marks, and none by default."""
    settings = dict(prompt.settings)
    if "prompt_cache_options.mode" in settings:
        settings["prompt_cache_options.mode"] = "explicit"
    parts = (replace(part, breakpoint=None) if part.breakpoint else part for part in prompt.parts)
    return replace(prompt, parts=tuple(parts), settings=settings)


def shared_by_all(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
    """One scope and one cache key for all."""
    settings = {name: value for name, value in prompt.settings.items() if name != "prompt_cache_key"}
    return replace(prompt, scope="", settings=settings)


def padded(minimum: int) -> Edit:
    """The first part made longer, so that the prefix up to the last mark reaches the minimum."""

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        last = max((index for index, part in enumerate(prompt.parts) if part.breakpoint), default=-1)
        short = minimum - sum(part.tokens for part in prompt.parts[: last + 1])
        if last < 0 or short <= 0:
            return prompt
        first = prompt.parts[0]
        return with_parts(prompt, (replace(first, tokens=first.tokens + short), *prompt.parts[1:]))

    return edit


def _in_place_of(part: Part, texts: Mapping[tuple[str, ...], str]) -> Part:
    pieces = _paragraphs(part.content)
    if len(pieces) < 3:
        return part
    return replace(part, content=texts.get(tuple(sorted(pieces)), part.content))


def _paragraphs(text: str) -> list[str]:
    return [piece for piece in (each.strip() for each in text.split("\n\n")) if piece]
