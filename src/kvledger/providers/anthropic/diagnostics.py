"""The `diagnostics` of a request: why the cache could not read what an earlier message had written.

Source: platform.claude.com/docs/en/build-with-claude/cache-diagnostics; types of the anthropic SDK 2.14.0.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from kvledger.ledger.account import Break, BreakReason
from kvledger.providers.prompt import ProviderPrompt

_TYPES = {
    BreakReason.MODEL_CHANGED: "model_changed",
    BreakReason.TOOLS_CHANGED: "tools_changed",
    BreakReason.SYSTEM_CHANGED: "system_changed",
    BreakReason.MESSAGES_CHANGED: "messages_changed",
    BreakReason.SETTINGS_CHANGED: "unavailable",
}


class PreviousMessages:
    """The prompts of the last `capacity` answers (`ValueError` below 1), by scope and message id."""

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < 1:
            raise ValueError(f"a memory of {capacity} messages remembers nothing: give one or more")
        self._capacity = capacity
        self._prompts: OrderedDict[tuple[str, str], ProviderPrompt] = OrderedDict()

    def remember(self, id: str, prompt: ProviderPrompt) -> None:
        self._prompts[prompt.scope, id] = prompt
        while len(self._prompts) > self._capacity:
            self._prompts.popitem(last=False)

    def recall(self, id: str, scope: str) -> ProviderPrompt | None:
        return self._prompts.get((scope, id))


def previous_message_id(body: Mapping[str, Any]) -> str | None:
    """The message that a request wants to be compared with."""
    asked = body.get("diagnostics")
    return asked.get("previous_message_id") if isinstance(asked, Mapping) else None


def diagnose(previous: ProviderPrompt | None, changes: Sequence[Break]) -> dict[str, Any] | None:
    """The `diagnostics` of an answer to a request that named a previous message: `previous` is its prompt, None if it
    is not known, and `changes` what `AnthropicRules.changes` finds between the two. None: nothing diverged.

    Only a difference between the two requests is a reason; an entry that has expired is none.
    """
    if previous is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    known = [change for change in changes if change.reason in _TYPES]
    if not known:
        return None
    kind = _TYPES[known[0].reason]
    missed = {} if kind == "unavailable" else {"cache_missed_input_tokens": sum(change.tokens for change in known)}
    return {"cache_miss_reason": {"type": kind, **missed}}
