"""Why a request reads no further than it does: what changed since the earlier request, or what became of the entry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvledger.ledger.account import Break, BreakReason
from kvledger.providers.anthropic.editions import Edition, Model, rules
from kvledger.providers.anthropic.lookup import Chain, Hits, readable
from kvledger.providers.anthropic.marks import THINKING
from kvledger.providers.anthropic.parts import shows_image
from kvledger.providers.anthropic.settings import by_level
from kvledger.providers.difference import common_characters, excerpt, first_difference
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import Level, ProviderPrompt

_ORDER = list(BreakReason)
_CHANGED = {
    Level.TOOLS: BreakReason.TOOLS_CHANGED,
    Level.SYSTEM: BreakReason.SYSTEM_CHANGED,
    Level.MESSAGES: BreakReason.MESSAGES_CHANGED,
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A prompt with the rules that it is judged by."""

    prompt: ProviderPrompt
    model: Model
    edition: Edition
    chain: Chain


@dataclass(frozen=True, slots=True)
class Found:
    """A break, and whether the rule behind it is certain."""

    shown: Break
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """Something that differs from the earlier request, and the first of its parts that this loses."""

    index: int
    reason: BreakReason
    path: str | None
    detail: str
    offset: int | None = None
    before: str = ""
    after: str = ""
    certain: bool = True


def find_breaks(this: Judged, hits: Hits, entries: EntryStore, at: float, earlier: Judged | None) -> list[Found]:
    """The breaks of one request, in the order of `BreakReason`. Their tokens do not overlap: each has what would be
    read if it, and everything before it in the prompt, were mended.
    """
    chain = this.chain
    marked = [index for index, part in enumerate(this.prompt.parts) if part.breakpoint]
    if not marked:
        known = chain.up_to(_shared(this, earlier) - 1)
        detail = "No block carries `cache_control`, its own or that of the top level."
        return [Found(Break(BreakReason.NOT_ASKED, known, detail=detail))]
    if not chain.marks:
        return [Found(_below_minimum(this, marked[-1]))]
    if hits.best == chain.reach:
        return []
    read = chain.up_to(hits.best)
    lost = _lost_entry(this, hits, entries, at)
    found = [] if lost is None else [lost]
    if earlier is not None and _related(earlier.prompt, this.prompt):
        base = read + (lost.shown.tokens if lost else 0)
        found += _from_changes(_changes(earlier, this), earlier.chain, base)
    if not found:
        found += _unwritten(this, earlier, read)
    if not found and hits.best < 0:
        found.append(Found(Break(BreakReason.COLD, 0, detail="No earlier request wrote any part of this prefix.")))
    return sorted(found, key=lambda each: _ORDER.index(each.shown.reason))


def find_changes(earlier: Judged, this: Judged) -> list[Break]:
    """What differs from the earlier request in what that cached, whatever has become of its entries since: the breaks,
    in the order of `BreakReason`, with the tokens beyond the last mark that both share."""
    changes = _changes(earlier, this)
    first = min((change.index for change in changes), default=0)
    shared = max((earlier.chain.tokens[mark] for mark in earlier.chain.marks if mark < first), default=0)
    breaks = [found.shown for found in _from_changes(changes, earlier.chain, shared)]
    return sorted(breaks, key=lambda each: _ORDER.index(each.reason))


def _below_minimum(this: Judged, mark: int) -> Break:
    tokens = this.chain.tokens[mark]
    return Break(
        BreakReason.BELOW_MINIMUM,
        tokens,
        detail=f"The prefix up to `{this.prompt.parts[mark].path}` holds {tokens} tokens; {this.model.name} caches"
        f" {this.edition.minimum} or more (rule {this.edition.rule}).",
    )


def _lost_entry(this: Judged, hits: Hits, entries: EntryStore, at: float) -> Found | None:
    """The longest entry of this very prefix that exists and was not read, and why not."""
    chain = this.chain
    for index in range(chain.reach, hits.best, -1):
        entry = entries.get(chain.digests[index])
        if entry is None:
            continue
        tokens = chain.tokens[index] - chain.up_to(hits.best)
        place = this.prompt.parts[index].path
        if entry.readable_at > at:
            return Found(Break(BreakReason.NOT_YET_READABLE, tokens, detail=_unreadable(entry, at)))
        if not readable(entry, at):
            return Found(Break(BreakReason.EXPIRED, tokens, detail=_expired(entry, at)))
        mark = next(mark for mark in chain.marks if mark > index)
        number = chain.positions[mark] - chain.positions[index] + 1
        detail = (
            f"The entry of {chain.tokens[index]} tokens ends at `{place}`, position {number} counted back from the"
            f" mark on `{this.prompt.parts[mark].path}`; {this.edition.positions} are looked at."
        )
        return Found(Break(BreakReason.LOOKBACK_EXCEEDED, tokens, detail=detail), this.edition.lookback_certain)
    return None


def _unreadable(entry: Entry, at: float) -> str:
    began = f"{at - entry.written_at:g} seconds before this one"
    wait = "had not begun" if math.isinf(entry.readable_at) else f"began {entry.readable_at - at:g} seconds after it"
    return f"The entry was being written by a request that began {began} and whose response {wait}."


def _expired(entry: Entry, at: float) -> str:
    gap = at - (entry.expires_at - entry.lifetime)
    return (
        f"The entry of {entry.tokens} tokens was last written or read {gap:g} seconds before this request;"
        f" with {entry.ttl} it lives {entry.lifetime:g} seconds."
    )


def _unwritten(this: Judged, earlier: Judged | None, read: int) -> list[Found]:
    """Text that was sent before, with the same settings, but has no entry where this request looks."""
    shared = min(_shared(this, earlier), this.chain.reach + 1)
    tokens = this.chain.up_to(shared - 1)
    if tokens <= read or tokens < this.edition.minimum:
        return []
    detail = (
        f"The first {tokens} tokens, up to `{this.prompt.parts[shared - 1].path}`, were sent before, and no entry"
        f" of them ends where this request looks."
    )
    return [Found(Break(BreakReason.NEVER_WRITTEN, tokens - read, detail=detail))]


def _shared(this: Judged, earlier: Judged | None) -> int:
    """How many parts at the start have the same prefix on both sides, settings and all."""
    pairs = zip(this.chain.digests, earlier.chain.digests if earlier else (), strict=False)
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count


def _related(earlier: ProviderPrompt, later: ProviderPrompt) -> bool:
    """Whether `later` has anything of `earlier`: a part somewhere, or most of the first one."""
    if not earlier.parts or not later.parts:
        return False
    if {part.identity for part in earlier.parts} & {part.identity for part in later.parts}:
        return True
    old, new = earlier.parts[0].content, later.parts[0].content
    start = common_characters(old, new)
    end = common_characters(old[start:][::-1], new[start:][::-1])
    return 2 * (start + end) >= max(len(old), len(new))


def _from_changes(changes: list[Change], chain: Chain, base: int) -> Iterator[Found]:
    """A break for each change that comes before the end of what the earlier request cached, in the prompt's order.

    Between one change and the next lie some of the earlier request's marks: what they reach, the one costs.
    """
    changes = [change for change in changes if change.index <= chain.reach]
    if chain.up_to(chain.reach) <= base:
        return
    for change in changes:
        following = min((other.index for other in changes if other.index > change.index), default=chain.reach + 1)
        upto = max((chain.tokens[mark] for mark in chain.marks if mark < following), default=0)
        tokens, base = max(0, upto - base), max(base, upto)
        shown = Break(change.reason, tokens, change.path, change.offset, change.before, change.after, change.detail)
        yield Found(shown, change.certain)


def _changes(earlier: Judged, this: Judged) -> list[Change]:
    """What differs, in the order of the prompt."""
    changes = (*_changed_cache(earlier, this), *_changed_text(earlier, this), *_changed_settings(earlier, this))
    return sorted(changes, key=lambda change: change.index)


def _changed_cache(earlier: Judged, this: Judged) -> Iterator[Change]:
    old, new = earlier.prompt, this.prompt
    if earlier.model.name != this.model.name:
        detail = "Each model has a cache of its own."
        yield Change(0, BreakReason.MODEL_CHANGED, "model", detail, 0, old.model, new.model)
    if (old.provider, old.scope) != (new.provider, new.scope):
        yield Change(0, BreakReason.KEY_CHANGED, None, "The earlier request came from another workspace or platform.")


def _changed_text(earlier: Judged, this: Judged) -> Iterator[Change]:
    difference = first_difference(earlier.prompt, this.prompt)
    if difference is None or difference.shared_parts == len(this.prompt.parts):
        return
    index = difference.shared_parts
    sides = (this.prompt.parts[index], earlier.prompt.parts[index])
    where = min(sides, key=lambda part: list(Level).index(part.level))  # a tool that is gone is missed among the tools
    in_tools = where.path.startswith("tools")  # web tools are rendered with the system prompt
    yield Change(
        index,
        BreakReason.TOOLS_CHANGED if in_tools else _CHANGED[where.level],
        where.path,
        _how(earlier, this, index),
        difference.offset,
        difference.before,
        difference.after,
    )


def _how(earlier: Judged, this: Judged, index: int) -> str:
    """What happened at the first part that differs: moved, put in, taken out or edited."""
    old, new = earlier.prompt.parts[index], this.prompt.parts[index]
    if this.model.strips_thinking and old.kind in THINKING:
        return f"{this.model.name} drops earlier thinking once ordinary user content arrives."
    kept = old.identity in {part.identity for part in this.prompt.parts[index:]}
    known = new.identity in {part.identity for part in earlier.prompt.parts[index:]}
    what = {
        (True, True): "The same parts stand in another order from here on.",
        (True, False): "Something was put in before what stood here.",
        (False, True): "What stood here was taken out.",
        (False, False): "What stands here was edited.",
    }[kept, known]
    return f"{what} Tokens before it: {this.chain.up_to(index - 1)}."


def _changed_settings(earlier: Judged, this: Judged) -> Iterator[Change]:
    before, after = by_level(earlier.prompt, earlier.model), by_level(this.prompt, this.model)
    order = list(Level)
    for level in order:
        old, new = before.get(level, {}), after.get(level, {})
        index = next(
            (i for i, part in enumerate(this.prompt.parts) if order.index(part.level) >= order.index(level)),
            len(this.prompt.parts),
        )
        for name in sorted(old.keys() | new.keys()):
            was, now = old.get(name, ""), new.get(name, "")
            if was == now:
                continue
            offset = common_characters(was, now)
            sides = (excerpt(was, offset), excerpt(now, offset)) if name != "images" else ("", "")
            yield Change(
                index,
                BreakReason.SETTINGS_CHANGED,
                _image_path(earlier.prompt, this.prompt) if name == "images" else _setting_path(name),
                f"A change of {name} loses the cache from {level.value} on; the default counts as left out.",
                offset if name != "images" else None,
                *sides,
                certain=name not in rules().doubtful and not (this.model.leads and name in rules().leading),
            )


def _setting_path(name: str) -> str:
    return "messages" if name == "citations" else name


def _image_path(earlier: ProviderPrompt, later: ProviderPrompt) -> str:
    """The first part that shows an image which the other side does not."""
    for side, other in ((later, earlier), (earlier, later)):
        known = {part.identity for part in other.parts if shows_image(part)}
        for part in side.parts:
            if shows_image(part) and part.identity not in known:
                return part.path
    return "messages"  # the same images, moved or repeated
