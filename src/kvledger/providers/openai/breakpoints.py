"""The cache of GPT-5.6 and later: which places of a prompt it looks at, which it writes, and why it read no further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from kvledger.cache.digest import Digest
from kvledger.ledger.account import Account, Break, BreakReason, Split
from kvledger.providers import breaks
from kvledger.providers.difference import shared_parts
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.openai.differences import is_cold, outside_change, text_change
from kvledger.providers.openai.editions import Edition, rules
from kvledger.providers.openai.parts import END
from kvledger.providers.openai.settings import MODE, TTL
from kvledger.providers.prompt import Level, Part, ProviderPrompt, prefix_digests
from kvledger.providers.rulebook import Verdict
from kvledger.providers.steps import readable

WRITES = 4
"""Places written per request; in implicit mode one of them is the implicit breakpoint. Documented."""


@dataclass(frozen=True, slots=True)
class Place:
    """A possible end of a cached prefix: behind part `index`, at a breakpoint or (not `explicit`) at the end of an
    eligible message. `tokens` are those of the whole prefix."""

    index: int
    tokens: int
    digest: Digest
    ttl: str
    explicit: bool


@dataclass(frozen=True, slots=True)
class Places:
    """All places of a prompt, those it looks at, and those it writes; each in the prompt's order, none below the
    minimum. `longest` is the longest prefix that ends at a place, whatever the minimum; 0 if there is no place."""

    every: Sequence[Place]
    looked: Sequence[Place]
    written: Sequence[Place]
    longest: int


def places(prompt: ProviderPrompt, root: Digest, edition: Edition) -> Places:
    """Find the places. In explicit mode the ends of messages are neither written nor looked at."""
    digests = prefix_digests(root, prompt.parts)
    tokens = list(accumulate(part.tokens for part in prompt.parts))
    implicit = _is_implicit(prompt)
    ends = set(eligible_ends(prompt.parts))
    every = []
    for index, part in enumerate(prompt.parts):
        mark = part.breakpoint
        if mark is not None or index in ends:
            ttl = mark.ttl if mark else prompt.settings.get(TTL, "30m")
            every.append(Place(index, tokens[index], digests[index], ttl, mark is not None))
    marked = [place for place in every if place.explicit]
    closed = [place for place in every if not place.explicit]
    latest = closed[-1:] if implicit else []
    written = [*marked[-(WRITES - len(latest)) :], *latest] if latest else marked[-WRITES:]
    if not implicit:
        looked = _looked(marked, [], edition)
    else:
        looked = _looked(marked, closed, edition)
        if edition.earlier_ends:  # the guide also names the end of the initial developer block
            looked += [place for place in closed if prompt.parts[place.index].level is Level.SYSTEM]

    def from_the_minimum(found: Sequence[Place]) -> list[Place]:
        return sorted({place.index: place for place in found if place.tokens >= edition.minimum}.values(), key=_index)

    counted = every if implicit else marked
    longest = counted[-1].tokens if counted else 0
    return Places(from_the_minimum(every), from_the_minimum(looked), from_the_minimum(written), longest)


def eligible_ends(parts: Sequence[Part]) -> list[int]:
    """Indices of the message ends that an implicit breakpoint can take: of each user message, of the last tool response
    of a group, of the last developer message of the initial group."""
    found = []
    for index, part in enumerate(parts):
        following = parts[index + 1] if index + 1 < len(parts) else None
        if part.kind == END and (
            part.role == "user"
            or (part.role == "tool" and (following is None or following.role != "tool"))
            or (part.level is Level.SYSTEM and (following is None or following.level is not Level.SYSTEM))
        ):
            found.append(index)
    return found


def judge(
    prompt: ProviderPrompt,
    root: Digest,
    edition: Edition,
    entries: EntryStore,
    at: float,
    earlier: ProviderPrompt | None,
) -> Verdict:
    """See `Rulebook.judge`. Reads up to the last place looked at that has a readable entry, and pays for what lies
    between that and the places written, by the lifetime of the place that it leads up to."""
    here = places(prompt, root, edition)
    found = {place.index: entries.get(place.digest) for place in here.every}
    hits = [place for place in here.looked if (entry := found[place.index]) and readable(entry, at)]
    read = hits[-1].tokens if hits else 0
    written, reach = dict[str, int](), read
    for place in here.written:
        if place.tokens > reach:
            written[place.ttl] = written.get(place.ttl, 0) + place.tokens - reach
            reach = place.tokens
    told = _why(prompt, here, found, read, edition, at, earlier)
    kept = {place.digest: entry for place in (*hits, *here.written) if (entry := _alive(found[place.index], at))}
    lifetimes = rules().lifetimes
    account = Account(
        Split(prompt.tokens, read, written, prompt.tokens - reach),
        tuple(told),
        f"{prompt.provider}/{edition.name}",
        edition.certain
        and not any(each.reason is BreakReason.LOOKBACK_EXCEEDED for each in told)
        # Whether an entry that a longer breakpoint meets lives longer from then on is not documented. Here it does not.
        and all(kept[place.digest].ttl == place.ttl for place in here.written if place.digest in kept),
    )
    return Verdict(
        account,
        tuple(entry.refreshed(at) for entry in kept.values()),
        tuple(
            Entry(place.digest, place.tokens, place.ttl, lifetimes[place.ttl], at, at, at + lifetimes[place.ttl])
            for place in here.written
            if place.digest not in kept
        ),
    )


def _looked(marked: list[Place], closed: list[Place], edition: Edition) -> list[Place]:
    if edition.latest:
        return sorted([*marked, *closed], key=_index)[-edition.latest :]
    first, latest = marked[: edition.first_explicit], marked[-edition.latest_explicit :]
    return [*first, *latest, *closed[-(edition.earlier_ends + 1) :]]


def _why(
    prompt: ProviderPrompt,
    here: Places,
    found: dict[int, Entry | None],
    read: int,
    edition: Edition,
    at: float,
    earlier: ProviderPrompt | None,
) -> list[Break]:
    if not here.longest:
        detail = "In explicit mode a request without breakpoints is not cached."
        if _is_implicit(prompt):
            detail = "There is no message at whose end a breakpoint could stand."
        return [Break(BreakReason.NOT_ASKED, 0, detail=detail)]
    if here.longest < edition.minimum:
        return [breaks.below_minimum(here.longest, edition.minimum, prompt.model)]
    told = _unread(here, found, read, at)
    if earlier is not None and not is_cold(earlier, prompt):
        shared, changed = _changes(earlier, prompt, read, edition)
        if not told and shared - read >= edition.minimum:
            told = [breaks.unread(shared, read, None, at)]
        told += changed
    if not told and not read:
        told.append(Break(BreakReason.COLD, 0, detail="No earlier request begins like this one."))
    return told


def _unread(here: Places, found: dict[int, Entry | None], read: int, at: float) -> list[Break]:
    """Why the longest entry that is known is not what was read."""
    looked = {place.index for place in here.looked}
    for place in reversed(here.every):
        entry = found[place.index]
        if place.tokens <= read or entry is None:
            continue
        if not readable(entry, at):
            return [breaks.unread(place.tokens, read, entry, at)] if place.index in looked else []
        if not place.explicit and not any(not other.explicit for other in here.looked):
            return [breaks.unread(place.tokens, read, None, at)]  # explicit mode does not look at ends of messages
        behind = sum(other.index > place.index for other in here.every)
        detail = f"The entry is alive, but {behind} breakpoints lie behind it: that is further back than OpenAI looks."
        return [Break(BreakReason.LOOKBACK_EXCEEDED, place.tokens - read, detail=detail)]
    return []


def _changes(earlier: ProviderPrompt, prompt: ProviderPrompt, read: int, edition: Edition) -> tuple[int, list[Break]]:
    """The tokens at the start that were sent before to the same cache, and what keeps the rest of what the earlier
    request wrote from being read."""
    shared = shared_parts(earlier, prompt)
    before = sum(part.tokens for part in prompt.parts[:shared])
    theirs = _last_place(earlier)
    if theirs < 0:
        return before, []
    if theirs < shared:
        reach = sum(part.tokens for part in prompt.parts[: theirs + 1])
    else:
        reach = min(sum(part.tokens for part in earlier.parts[: theirs + 1]), prompt.tokens)
    if (change := outside_change(earlier, prompt, edition)) is not None:
        return 0, [replace(change, tokens=reach - read)] if reach > read else []
    lost = reach - max(read, before)
    change = text_change(earlier, prompt)
    return before, [replace(change, tokens=lost)] if change is not None and lost > 0 else []


def _last_place(prompt: ProviderPrompt) -> int:
    """The index of the last part at which a prompt wrote, -1 if it wrote nowhere."""
    ends = eligible_ends(prompt.parts) if _is_implicit(prompt) else []
    return max((*ends, *(index for index, part in enumerate(prompt.parts) if part.breakpoint)), default=-1)


def _alive(entry: Entry | None, at: float) -> Entry | None:
    return entry if entry is not None and at <= entry.expires_at else None


def _is_implicit(prompt: ProviderPrompt) -> bool:
    return prompt.settings.get(MODE, "implicit") == "implicit"


def _index(place: Place) -> int:
    return place.index
