"""What changed since the nearest earlier prompt, in the order in which OpenAI's own diagnostics name it."""

from __future__ import annotations

from dataclasses import replace

from kvledger.ledger.account import Break, BreakReason
from kvledger.providers import breaks
from kvledger.providers.difference import common_characters, excerpt, first_difference
from kvledger.providers.openai.editions import Edition
from kvledger.providers.openai.parts import END
from kvledger.providers.openai.settings import KEY, breaking
from kvledger.providers.prompt import Level, ProviderPrompt


def is_cold(earlier: ProviderPrompt | None, prompt: ProviderPrompt) -> bool:
    """Whether the two have nothing in common; see `breaks.cold`. Ends of messages are all the same and do not count."""
    return breaks.cold(earlier and _texts(earlier), _texts(prompt))


def outside_change(earlier: ProviderPrompt, prompt: ProviderPrompt, edition: Edition) -> Break | None:
    """A change that is not in the text and therefore leaves nothing to read, as a break without tokens.

    OpenAI's order: model, key, tools, the other settings. A change of tools is one of the text, hence None.
    """
    if earlier.model != prompt.model:
        detail = f"The request before was for {earlier.model}: each model has a cache of its own."
        return Break(BreakReason.MODEL_CHANGED, 0, "model", 0, earlier.model, prompt.model, detail)
    if edition.kind == "breakpoints" and earlier.settings.get(KEY) != prompt.settings.get(KEY):
        detail = "From GPT-5.6 on each key has a cache of its own."
        return _setting(
            BreakReason.KEY_CHANGED, KEY, earlier.settings.get(KEY, ""), prompt.settings.get(KEY, ""), detail
        )
    found = first_difference(earlier, prompt)
    if found is not None and found.level is Level.TOOLS:
        return None
    before, after = breaking(earlier, edition), breaking(prompt, edition)
    for name in dict.fromkeys((*before, *after)):
        (path, was), (place, now) = before.get(name, ("", "")), after.get(name, ("", ""))
        if was != now:
            detail = f"The cache depends on `{place or path}`, which stands ahead of the whole prompt."
            return _setting(BreakReason.SETTINGS_CHANGED, place or path, was, now, detail)
    return None


def text_change(earlier: ProviderPrompt, prompt: ProviderPrompt) -> Break | None:
    """The first difference of the text, as a break without tokens."""
    found = first_difference(earlier, prompt)
    if found is None:
        return None
    return Break(breaks.CHANGED[found.level], 0, found.path, found.offset, found.before, found.after)


def _setting(reason: BreakReason, path: str, before: str, after: str, detail: str) -> Break:
    offset = common_characters(before, after)
    return Break(reason, 0, path, offset, excerpt(before, offset), excerpt(after, offset), detail)


def _texts(prompt: ProviderPrompt) -> ProviderPrompt:
    return replace(prompt, parts=tuple(part for part in prompt.parts if part.kind != END))
