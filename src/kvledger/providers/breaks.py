"""Why a cache that finds shared beginnings by itself did not read more: the difference, or the state of the entry."""

from __future__ import annotations

from kvledger.ledger.account import Break, BreakReason
from kvledger.providers.difference import common_characters, first_difference
from kvledger.providers.entries import Entry
from kvledger.providers.prompt import Level, ProviderPrompt
from kvledger.providers.steps import rounded

CHANGED = {
    Level.TOOLS: BreakReason.TOOLS_CHANGED,
    Level.SYSTEM: BreakReason.SYSTEM_CHANGED,
    Level.MESSAGES: BreakReason.MESSAGES_CHANGED,
}


def below_minimum(tokens: int, minimum: int, model: str) -> Break:
    return Break(
        BreakReason.BELOW_MINIMUM,
        0,
        detail=f"The prompt has {tokens} tokens; {model} caches none shorter than {minimum}.",
    )


def same_cache(earlier: ProviderPrompt, prompt: ProviderPrompt, keys: tuple[str, ...]) -> bool:
    """Whether what the earlier request wrote is where this one looks: same model, same value of each key."""
    same_keys = all(earlier.settings.get(key) == prompt.settings.get(key) for key in keys)
    return earlier.model == prompt.model and same_keys


def changed(
    earlier: ProviderPrompt, prompt: ProviderPrompt, keys: tuple[str, ...], *, known: int, step: int
) -> list[Break]:
    """What differs from the nearest earlier prompt, unless all that it could lend is among the `known` tokens, those
    that this prompt's own cache has seen."""
    lost = rounded(min(earlier.tokens, prompt.tokens), step=step) - rounded(known, step=step)
    if lost <= 0:
        return []
    if earlier.model != prompt.model:
        detail = f"The request before was for {earlier.model}: each model has a cache of its own."
        return [Break(BreakReason.MODEL_CHANGED, lost, "model", 0, earlier.model, prompt.model, detail)]
    for key in keys:
        before, after = earlier.settings.get(key, ""), prompt.settings.get(key, "")
        if before != after:
            detail = f"Each value of `{key}` has a cache of its own."
            return [Break(BreakReason.KEY_CHANGED, lost, key, 0, before[:80], after[:80], detail)]
    found = first_difference(earlier, prompt)
    if found is None:
        return []
    return [Break(CHANGED[found.level], lost, found.path, found.offset, found.before, found.after)]


def unread(shared: int, read: int, entry: Entry | None, at: float, delay: float = 0.0) -> Break:
    """Why of `shared` tokens that were sent before only `read` are read; `entry` is what is known of the rest."""
    lost = shared - read
    if entry is not None and at > entry.expires_at:
        idle = at - (entry.expires_at - entry.lifetime)
        detail = f"The entry was written or renewed {idle:.0f} s before and lives {entry.lifetime:.0f} s."
        return Break(BreakReason.EXPIRED, lost, detail=detail)
    if entry is not None and at < entry.readable_at + delay:
        detail = f"The entry was still being written: it can be read {entry.readable_at + delay - at:.1f} s later."
        return Break(BreakReason.NOT_YET_READABLE, lost, detail=detail)
    detail = "The text was sent before, but no entry that this request looks at ends there."
    return Break(BreakReason.NEVER_WRITTEN, lost, detail=detail)


def cold(earlier: ProviderPrompt | None, prompt: ProviderPrompt) -> bool:
    """Whether the two have nothing in common: no part, nor the first character of the first ones."""
    if earlier is None or not earlier.parts or not prompt.parts:
        return True
    if common_characters(earlier.parts[0].content, prompt.parts[0].content):
        return False
    known = {part.identity for part in earlier.parts}
    return not any(part.identity in known for part in prompt.parts)
