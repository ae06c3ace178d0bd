"""What really differs between two prompts of which the later one should have continued the earlier one.

Two prompts that merely begin alike are different prompts and no fault: something is said only where both have text in
common behind the first difference, text that would have been read if the difference were not there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from kvledger.audit.findings import Code, Where
from kvledger.audit.volatile import Span, span
from kvledger.providers.difference import Difference, first_difference, same
from kvledger.providers.prompt import Level, Part, ProviderPrompt

LEAST = 64
"""Tokens below which nothing is said to be lost."""

_SIMILAR = 0.5
"""Share of a text that must be equal around the difference for it to count as the same text, edited."""

_KEPT = 0.25
"""Share of what followed in the earlier prompt that the later one must still have."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """The cause, and the `tokens` behind the first difference that both have: those that mending it would let be read.

    `path` is that of the part that differs, and `span` what differs in it where the rest of it is the same.
    """

    code: Code
    tokens: int
    where: Where
    path: str
    detail: str
    span: Span | None = None


def contrast(earlier: ProviderPrompt, later: ProviderPrompt, *, continued: bool, last_message: int) -> Contrast | None:
    """The cause of the first difference, None if there is none or the prompts are different ones.

    `continued` says that both belong to one conversation; `last_message` is the index at which the earlier prompt's
    last message begins, which may be asked anew without any fault.
    """
    found = first_difference(earlier, later)
    if found is None or found.shared_parts == len(later.parts):
        return None
    old, new = earlier.parts[found.shared_parts :], later.parts[found.shared_parts :]
    where = Where(found.path, found.offset, found.before, found.after)
    if old[0].level is Level.TOOLS or new[0].level is Level.TOOLS:
        return _tools(earlier, later, old, new, where)
    kept = _kept(old[1:], new[1:])
    if old[0].level is new[0].level and _sorted_keys(old[0].content) == _sorted_keys(new[0].content):
        tokens = new[0].tokens + kept
        detail = "Both sides hold the same JSON with its keys in another order."
        return Contrast(Code.KEY_ORDER_CHANGED, tokens, where, new[0].path, detail) if tokens >= LEAST else None
    if len(old) == len(new) or old[0].level is Level.SYSTEM:
        reordered = _examples(old, new, last_message - found.shared_parts, where)
        if reordered is not None:
            return reordered
    edited = _edited(found, old, new, kept, where, continued=continued, last=last_message)
    if edited is not None:
        return edited
    return _rewritten(old, new, where, last=last_message - found.shared_parts)


def _tools(
    earlier: ProviderPrompt, later: ProviderPrompt, old: Sequence[Part], new: Sequence[Part], where: Where
) -> Contrast | None:
    before = [part for part in earlier.parts if part.level is Level.TOOLS]
    after = [part for part in later.parts if part.level is Level.TOOLS]
    kept = _kept(old, new)
    path = where.path
    if Counter(map(_identity, before)) == Counter(map(_identity, after)):
        names = _list([_name(part) for part in after[:3]])
        detail = f"The same {len(after)} tools in another order; now {names} come first."
        return Contrast(Code.TOOLS_REORDERED, kept, where, path, detail) if kept >= LEAST else None
    if Counter(_sorted_keys(part.content) for part in before) == Counter(_sorted_keys(part.content) for part in after):
        tokens = sum(part.tokens for part in new if part.level is Level.TOOLS) + _kept(
            [part for part in old if part.level is not Level.TOOLS],
            [part for part in new if part.level is not Level.TOOLS],
        )
        detail = "The tools are the same, with the keys of their JSON in another order."
        return Contrast(Code.KEY_ORDER_CHANGED, tokens, where, path, detail) if tokens >= LEAST else None
    if kept < LEAST or kept < _KEPT * sum(part.tokens for part in old):
        return None
    if old[0].level is new[0].level and _name(old[0]) == _name(new[0]):
        change = span(old[0].content, new[0].content)
        if change.shape and _is_similar(change, old[0], new[0]):
            detail = f"{change.shape.capitalize()} in the description of the tool {_name(new[0])} changes."
            return Contrast(Code.VOLATILE_PREFIX, kept, where, path, detail, change)
    was, is_now = {_name(part): part.content for part in before}, {_name(part): part.content for part in after}
    told = {
        "added": [name for name in is_now if name not in was],
        "removed": [name for name in was if name not in is_now],
        "edited": [name for name in is_now if name in was and is_now[name] != was[name]],
    }
    detail = "; ".join(f"{what}: {_list(names)}" for what, names in told.items() if names)
    return Contrast(Code.TOOLS_CHANGED, kept, where, path, f"Tools {detail}.")


def _examples(old: Sequence[Part], new: Sequence[Part], last: int, where: Where) -> Contrast | None:
    """The same pieces in another order: messages before the last one, blocks, or paragraphs of one text."""
    was, is_now = old[:last] if last > 0 else old, new[: len(old[:last])] if last > 0 else new
    texts = [part for part in was if part.tokens]
    if len(texts) > 1 and Counter(map(_identity, was)) == Counter(map(_identity, is_now)):
        tokens = sum(part.tokens for part in is_now)
        detail = f"The same {len(texts)} pieces stand in another order."
        if tokens >= LEAST:
            return Contrast(Code.EXAMPLES_REORDERED, tokens, where, new[0].path, detail)
    before, after = _paragraphs(old[0].content), _paragraphs(new[0].content)
    if len(before) > 2 and sorted(before) == sorted(after):
        shared = (where.offset or 0) / max(1, len(new[0].content))
        tokens = int(new[0].tokens * (1 - shared)) + _kept(old[1:], new[1:])
        if tokens >= LEAST:
            detail = f"The same {len(before)} paragraphs stand in another order."
            return Contrast(Code.EXAMPLES_REORDERED, tokens, where, new[0].path, detail)
    return None


def _edited(
    found: Difference, old: Sequence[Part], new: Sequence[Part], kept: int, where: Where, *, continued: bool, last: int
) -> Contrast | None:
    """One part changed in its place, with the same text behind it: in the part itself or in those that follow."""
    a, b = old[0], new[0]
    if a.kind != b.kind or a.role != b.role:
        return None
    change = span(a.content, b.content)
    behind = b.tokens * change.after // max(1, len(b.content))
    follows = next(
        (same(x, y) for x, y in zip(old[1:], new[1:], strict=False) if x.tokens >= 8 or y.tokens >= 8), False
    )
    in_last = found.shared_parts >= last and a.level is Level.MESSAGES
    tokens = behind + (kept if follows or not in_last else 0)
    if tokens < LEAST or not (_is_similar(change, a, b) or (follows and (change.shape or a.level is Level.SYSTEM))):
        return None
    if in_last and behind < LEAST:
        return None
    if a.level is Level.MESSAGES and continued and not in_last and not change.shape:
        detail = f"An earlier message was edited: `{b.path}`."
        return Contrast(Code.HISTORY_REWRITTEN, tokens, where, b.path, detail)
    what = change.shape.capitalize() if change.shape else "A piece of the text"
    detail = f"{what} changes in `{b.path}`, and {tokens} tokens behind it stay the same."
    return Contrast(
        Code.VOLATILE_PREFIX,
        tokens,
        where,
        b.path,
        detail,
        change if _is_similar(change, a, b) else Span(0, 0, change.shape),
    )


def _rewritten(old: Sequence[Part], new: Sequence[Part], where: Where, *, last: int) -> Contrast | None:
    if old[0].level is Level.SYSTEM and new[0].level is Level.SYSTEM:
        return _blocks_around(old, new, where)
    if last <= 0:
        return None  # only the last message differs: it was asked anew
    kept = _kept(old, new)
    if kept < LEAST or kept < _KEPT * sum(part.tokens for part in old):
        return None
    have = Counter(map(_identity, new))
    gone = [part for part in old if part.tokens and not have[_identity(part)]]
    if not gone:
        how = "pieces of the history were moved, or others were put between them"
    elif len(new) > len(old):
        how = f"{len(gone)} of the {len(old)} pieces that followed were edited"
    else:
        how = f"{len(gone)} of the {len(old)} pieces that followed were dropped"
    detail = f"From `{old[0].path}` on {how}."
    return Contrast(Code.HISTORY_REWRITTEN, kept, where, new[0].path, detail)


def _blocks_around(old: Sequence[Part], new: Sequence[Part], where: Where) -> Contrast | None:
    """System blocks that come and go before others that stay."""
    kept = _kept(old, new)
    if kept < LEAST or kept < _KEPT * sum(part.tokens for part in old):
        return None
    detail = f"System text before `{new[0].path}` comes and goes, and {kept} tokens behind it stay the same."
    return Contrast(Code.VOLATILE_PREFIX, kept, where, new[0].path, detail)


def _is_similar(change: Span, a: Part, b: Part) -> bool:
    return change.before + change.after >= _SIMILAR * max(len(a.content), len(b.content))


def _kept(old: Sequence[Part], new: Sequence[Part]) -> int:
    """Tokens of the parts of `new` that `old` has too."""
    have, tokens = Counter(map(_identity, old)), 0
    for part in new:
        identity = _identity(part)
        if have[identity] > 0:
            have[identity] -= 1
            tokens += part.tokens
    return tokens


def _identity(part: Part) -> tuple[str, str, str]:
    return part.kind, part.role, part.content


def _paragraphs(text: str) -> list[str]:
    found = [piece.strip() for piece in re.split(r"\n\s*\n", text)]
    return [piece for piece in found if piece]


@lru_cache(maxsize=1024)
def _sorted_keys(content: str) -> str:
    """JSON with its keys sorted; any other text as it is."""
    if not content.startswith(("{", "[")):
        return content
    try:
        return msgspec.json.encode(msgspec.json.decode(content), order="sorted").decode()
    except msgspec.DecodeError:
        return content


@lru_cache(maxsize=1024)
def _tool_name(content: str) -> str:
    try:
        tool = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return ""
    inner = tool.get("function") if isinstance(tool, dict) else None
    named = inner if isinstance(inner, dict) else tool
    return str(named.get("name") or named.get("type") or "") if isinstance(named, dict) else ""


def _name(part: Part) -> str:
    return _tool_name(part.content)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
