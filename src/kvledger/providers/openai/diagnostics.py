"""`prompt_cache_diagnostics` of the Responses API: an account, made with the compared response as the earlier prompt,
in OpenAI's words."""

from __future__ import annotations

from typing import Any

from kvledger.ledger.account import Account, Break, BreakReason

_BY_REASON = {
    BreakReason.MODEL_CHANGED: "model_changed",
    BreakReason.KEY_CHANGED: "prompt_cache_key_changed",
    BreakReason.TOOLS_CHANGED: "tools_changed",
    BreakReason.SYSTEM_CHANGED: "input_changed",
    BreakReason.MESSAGES_CHANGED: "input_changed",
    BreakReason.COLD: "input_changed",  # nothing in common with the compared response
}
_BY_SETTING = {
    "parallel_tool_calls": "tools_changed",
    "text.format": "text_format_changed",
    "reasoning.effort": "reasoning_effort_changed",
    "text.verbosity": "verbosity_changed",
    "context_management": "context_compacted",
    "service_tier": "service_tier_changed",
}


def diagnostics(account: Account | None, *, is_found: bool) -> dict[str, Any]:
    """What OpenAI would say. `is_found` is whether the response to compare with is known.

    OpenAI has no word for a miss without a change (expired, never written, too far back): that is `unavailable`.
    """
    if not is_found:
        return {"type": "comparison_response_not_found"}
    if account is None:
        return {"type": "unavailable"}
    reason = next((reason for each in account.breaks if (reason := _reason(each)) is not None), None)
    if reason is not None:
        split = account.split
        return {
            "type": "cache_miss",
            "reason": reason,
            "cache_missed_tokens": split.prompt_tokens - split.read,
            "comparison_reusable_tokens": split.read + sum(each.tokens for each in account.breaks),
        }
    return {"type": "cache_hit" if account.split.read else "unavailable"}


def _reason(each: Break) -> str | None:
    if each.reason is BreakReason.SETTINGS_CHANGED:
        return _BY_SETTING.get(each.path or "")
    return _BY_REASON.get(each.reason)
