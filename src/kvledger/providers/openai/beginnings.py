"""The cache of GPT-5.5 and earlier: it finds shared beginnings by itself, counts them in steps and bills no write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvledger.cache.digest import Digest
from kvledger.ledger.account import Account, Break, BreakReason, Split
from kvledger.providers import breaks
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.openai.differences import is_cold, outside_change, text_change
from kvledger.providers.openai.editions import Edition, rules
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import Verdict
from kvledger.providers.steps import Stop, readable, rounded, shared_tokens, stops


def judge(
    prompt: ProviderPrompt,
    root: Digest,
    edition: Edition,
    entries: EntryStore,
    at: float,
    earlier: ProviderPrompt | None,
    retention: str,
) -> Verdict:
    """See `Rulebook.judge`. Reads the longest beginning that an earlier request had, in whole steps. A use of a
    beginning renews all of it; what follows is remembered, for as long as `retention` says, for the next."""
    if prompt.tokens < edition.minimum:
        return Verdict(
            account(prompt, edition, 0, [breaks.below_minimum(prompt.tokens, edition.minimum, prompt.model)])
        )
    chain, known, hit = stops(root, prompt.parts), list[Entry](), -1
    for index, stop in enumerate(chain):
        entry = entries.get(stop.digest)
        if entry is None:
            break
        known.append(entry)
        if readable(entry, at):
            hit = index
    read = rounded(chain[hit].tokens if hit >= 0 else 0, minimum=edition.minimum, step=edition.step)
    told = account(prompt, edition, read, _why(prompt, earlier, edition, chain, known, read, at))
    lifetime = rules().retention[retention].idle
    return Verdict(
        replace(told, certain=False) if any(_in_doubt(entry, at) for entry in known) else told,
        tuple(entry.refreshed(at) for entry in known[: hit + 1]),
        tuple(
            Entry(stop.digest, stop.tokens, retention, lifetime, at, at, at + lifetime)
            for index, stop in enumerate(chain)
            if index >= len(known) or at > known[index].expires_at
        ),
    )


def account(prompt: ProviderPrompt, edition: Edition, read: int, told: Sequence[Break]) -> Account:
    """The account of a prompt of which `read` tokens are read and nothing is billed as written."""
    split = Split(prompt.tokens, read, {}, prompt.tokens - read)
    return Account(split, tuple(told), f"{prompt.provider}/{edition.name}", edition.certain)


def _why(
    prompt: ProviderPrompt,
    earlier: ProviderPrompt | None,
    edition: Edition,
    chain: Sequence[Stop],
    known: Sequence[Entry],
    read: int,
    at: float,
) -> list[Break]:
    """What was sent before and is not read, and where the prompt leaves the earlier one."""
    told, changes = list[Break](), list[Break]()
    seen = chain[len(known) - 1].tokens if known else 0
    if earlier is not None and not is_cold(earlier, prompt):
        change = outside_change(earlier, prompt, edition)
        if change is None:
            seen = max(seen, shared_tokens(earlier, prompt))
            change = text_change(earlier, prompt)
        lost = rounded(min(earlier.tokens, prompt.tokens), step=edition.step) - rounded(seen, step=edition.step)
        if change is not None and lost > 0:
            changes = [replace(change, tokens=lost)]
    shared = rounded(seen, minimum=edition.minimum, step=edition.step)
    if shared > read:
        told.append(breaks.unread(shared, read, known[-1] if known else None, at))
    told += changes
    if not told and not read:
        told.append(Break(BreakReason.COLD, 0, detail="No earlier request begins like this one."))
    return told


def _in_doubt(entry: Entry, at: float) -> bool:
    """Whether the time since the last use lies between the documented bounds, where the entry may live or not."""
    idle, retention = at - (entry.expires_at - entry.lifetime), rules().retention[entry.ttl]
    return retention.least < idle <= retention.most
