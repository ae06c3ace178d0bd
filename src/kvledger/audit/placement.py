"""Where cache marks of one request are best put, knowing what is in the cache and which requests follow.

The exact optimum by dynamic programming over the ends of segments, with the provider's limits: so many marks, each
reading the longest entry among the positions that it looks back over.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

MOST = 4
LOOKBACK = 20
"""Marks of a request and positions that each looks back over: Anthropic's documented numbers."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What a token costs, all in one unit: paid in full, written, read."""

    fresh: int
    write: int
    read: int


def value(
    marks: Sequence[int], tokens: Sequence[int], entries: Collection[int], followers: Sequence[int], rate: Rate
) -> int:
    """What marks at these ends cost, less what they let the followers save. Ends are indices into `tokens`, the tokens
    up to and including each; `entries` are ends of which the cache holds an entry, and each follower is the last end
    that it has in common with this request (-1 for none)."""
    total = tokens[-1] if tokens else 0
    read = max((_found(mark, entries) for mark in marks), default=-1)
    have = tokens[read] if read >= 0 else 0
    reach = max((tokens[mark] for mark in marks), default=0)
    cost = have * rate.read + (reach - have) * rate.write + (total - reach) * rate.fresh
    for follower in followers:
        best = max((tokens[end] for end in (*marks, *entries) if end <= follower), default=0)
        cost -= best * (rate.fresh - rate.read)
    return cost


def best_marks(
    tokens: Sequence[int],
    entries: Collection[int],
    followers: Sequence[int],
    rate: Rate,
    *,
    most: int = MOST,
) -> tuple[int, ...]:
    """The cheapest set of at most `most` marks by `value`, the fewest of equals.

    Only three kinds of ends can be worth a mark: those that hold an entry, the last from which such an entry is still
    seen, and those that a follower shares. Between two of them what a mark costs and saves is linear in its tokens, so
    one of the two is at least as good. The candidates are few, however long the prompt.
    """
    seen = (end + LOOKBACK - 1 for end in entries)
    ends = sorted({*entries, *(each for each in (*followers, *seen) if 0 <= each < len(tokens))})
    if not ends:
        return ()
    total = tokens[-1]
    gain = rate.fresh - rate.read
    base = {each: max((tokens[end] for end in entries if end <= each), default=0) for each in followers}

    def saved(mark: int, following: int | None) -> int:
        """What followers save that share `mark` but not the next mark, over what the entries give them anyway."""
        sharing = (each for each in followers if mark <= each and (following is None or each < following))
        return sum(max(0, tokens[mark] - base[each]) for each in sharing) * gain

    @cache
    def rest(place: int, left: int, read: int) -> tuple[int, tuple[int, ...]]:
        """The least cost from mark `ends[place]` on, with `left` marks to set and `read` the best entry found."""
        mark = ends[place]
        have, reach = tokens[read] if read >= 0 else 0, tokens[mark]
        stop = have * rate.read + (reach - have) * rate.write + (total - reach) * rate.fresh - saved(mark, None)
        best: tuple[int, tuple[int, ...]] = (stop, ())
        if left:
            for later in range(place + 1, len(ends)):
                cost, chosen = rest(later, left - 1, max(read, _found(ends[later], entries)))
                best = min(best, (cost - saved(mark, ends[later]), (ends[later], *chosen)), key=_order)
        return best

    best: tuple[int, tuple[int, ...]] = (total * rate.fresh, ())
    for place, end in enumerate(ends):
        cost, chosen = rest(place, most - 1, _found(end, entries))
        best = min(best, (cost, (end, *chosen)), key=_order)
    return best[1]


def _order(choice: tuple[int, tuple[int, ...]]) -> tuple[int, int]:
    return choice[0], len(choice[1])


def _found(mark: int, entries: Collection[int]) -> int:
    """The entry that a mark reads: the longest among the positions that it looks back over."""
    return max((end for end in entries if end <= mark < end + LOOKBACK), default=-1)
