"""Qwen's caching rules: explicit where the body carries a mark, implicit otherwise, never both."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from kvledger.cache.digest import fields_digest
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Break, BreakReason, Split, Usage
from kvledger.providers import breaks
from kvledger.providers.anthropic.lookup import Chain, Hits, look_back
from kvledger.providers.automatic import AutomaticRules
from kvledger.providers.editions import Edition, edition_of, plain_name
from kvledger.providers.entries import Entry, EntryStore
from kvledger.providers.prompt import ProviderPrompt, prefix_digests
from kvledger.providers.qwen.usage import read_usage
from kvledger.providers.rulebook import TokenCounter, Verdict
from kvledger.providers.steps import shared_tokens

MOST_MARKS = 4
POSITIONS = 20
TTL = "5m"


class QwenRules(AutomaticRules):
    """A mark reads what an earlier mark wrote at most `POSITIONS` blocks back and writes up to itself."""

    def __init__(self) -> None:
        super().__init__("qwen")

    def prompt(self, body: Mapping[str, Any], *, scope: str, counter: TokenCounter, api: str = "") -> ProviderPrompt:
        """See `Rulebook.prompt`. Refuses a fifth mark and a lifetime other than 5m."""
        read = super().prompt(body, scope=scope, counter=counter, api=api)
        marked = [part for part in read.parts if part.breakpoint]
        if len(marked) > MOST_MARKS:
            where = f"{marked[MOST_MARKS].path}.cache_control"
            raise InvalidRequestError(f"`{where}` is one mark too many: at most {MOST_MARKS} are allowed.", param=where)
        for part in marked:
            if part.breakpoint and part.breakpoint.ttl != TTL:
                where = f"{part.path}.cache_control.ttl"
                raise InvalidRequestError(f"`{where}` must be 5m, the only lifetime there is.", param=where)
        return read

    def judge(
        self, prompt: ProviderPrompt, entries: EntryStore, at: float, *, earlier: ProviderPrompt | None = None
    ) -> Verdict:
        """See `Rulebook.judge`."""
        if not any(part.breakpoint for part in prompt.parts):
            return super().judge(prompt, entries, at, earlier=earlier)
        edition = edition_of(self.rules, prompt.model, at, variant="explicit")
        chain = self._chain(prompt, edition)
        hits = look_back(chain, entries, at, POSITIONS)
        read, reach = chain.up_to(hits.best), max(chain.up_to(hits.best), chain.up_to(chain.reach))
        written = {TTL: reach - read} if reach > read else {}
        return Verdict(
            Account(
                Split(prompt.tokens, read, written, prompt.tokens - reach),
                tuple(_why(prompt, earlier, chain, hits, edition, entries, at)),
                f"{self.provider}/{edition.name}",
                edition.certain,
            ),
            tuple(entry.refreshed(at) for entry in hits.entries),
            tuple(
                Entry(chain.digests[i], chain.tokens[i], TTL, edition.lifetime, at, at, at + edition.lifetime)
                for i in chain.marks
                if i not in hits.own
            ),
        )

    def usage(self, reported: Mapping[str, Any], *, api: str = "") -> Usage:
        return super().usage(reported, api=api) if api == "messages" else read_usage(reported)

    def _chain(self, prompt: ProviderPrompt, edition: Edition) -> Chain:
        root = fields_digest("qwen", mode="explicit", scope=prompt.scope, model=plain_name(prompt.model))
        tokens = list(accumulate(part.tokens for part in prompt.parts))
        marks = [i for i, part in enumerate(prompt.parts) if part.breakpoint and tokens[i] >= edition.minimum]
        return Chain(prefix_digests(root, prompt.parts), tokens, list(range(len(tokens))), marks)


def _why(
    prompt: ProviderPrompt,
    earlier: ProviderPrompt | None,
    chain: Chain,
    hits: Hits,
    edition: Edition,
    entries: EntryStore,
    at: float,
) -> list[Break]:
    if not chain.marks:
        last = max(i for i, part in enumerate(prompt.parts) if part.breakpoint)
        return [breaks.below_minimum(chain.tokens[last], edition.minimum, prompt.model)]
    told = []
    for index in range(chain.reach, hits.best, -1):
        entry = entries.get(chain.digests[index])
        if entry is None:
            continue
        if entry.readable_at <= at <= entry.expires_at:
            detail = f"The entry lies {chain.reach - index} blocks before the last mark; {POSITIONS} are looked at."
            told.append(
                Break(BreakReason.LOOKBACK_EXCEEDED, chain.tokens[index] - chain.up_to(hits.best), detail=detail)
            )
        else:
            told.append(breaks.unread(chain.tokens[index], chain.up_to(hits.best), entry, at))
        break
    if earlier is not None and not breaks.cold(earlier, prompt):
        known = max(chain.up_to(hits.best), shared_tokens(earlier, prompt)) if earlier.model == prompt.model else 0
        told += breaks.changed(earlier, prompt, (), known=known, step=1)
    if not told and hits.best < 0:
        told.append(Break(BreakReason.COLD, 0, detail="No earlier request wrote an entry in this prompt."))
    return told
