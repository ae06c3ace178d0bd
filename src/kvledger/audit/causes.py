"""Why each request read less than it might have: the rulebook's reason, and what really differs behind it."""

from __future__ import annotations

from dataclasses import dataclass

from kvledger.audit.compare import LEAST, Contrast, contrast
from kvledger.audit.findings import Code, Where
from kvledger.audit.lineage import Kin, last_message
from kvledger.audit.request import Request
from kvledger.ledger.account import Account, Break, BreakReason
from kvledger.providers.prompt import Level, ProviderPrompt

CHANGED = frozenset((BreakReason.TOOLS_CHANGED, BreakReason.SYSTEM_CHANGED, BreakReason.MESSAGES_CHANGED))

_PLAIN = {
    BreakReason.EXPIRED: Code.TTL_EXPIRED,
    BreakReason.LOOKBACK_EXCEEDED: Code.LOOKBACK_EXCEEDED,
    BreakReason.NOT_YET_READABLE: Code.PARALLEL_FAN_OUT,
    BreakReason.DROPPED: Code.UNEXPLAINED,
}

_TOGETHER = 3.0
"""Seconds between two starts within which the first one's entry may well not have been readable, where the log does not
say when responses began."""


@dataclass(frozen=True, slots=True)
class Loss:
    """`tokens` that one request might have read and did not. `earlier` is the request that it should have continued,
    `shared` the parts at the start that both have; `contrast` what differs, where bodies show it."""

    code: Code
    request: Request
    earlier: Request | None
    shared: int
    tokens: int
    path: str
    where: Where | None = None
    detail: str = ""
    proven: bool = True
    contrast: Contrast | None = None


def loss(request: Request, prompt: ProviderPrompt, earlier: Request | None, kin: Kin, account: Account) -> Loss | None:
    """What a request lost by the rules, or against them; None where it read all it could. The first cause that holds is
    the one named; what the provider reported counts for more than what the rules say it should have read."""
    found = _by_rules(request, prompt, earlier, kin, account)
    reported = request.usage.split.read if request.usage else None
    if reported is None:
        return found
    expected = account.split.read
    if found is not None and reported >= expected + found.tokens // 2:
        return None
    if expected - reported >= max(LEAST, expected // 10) and account.certain:
        return _against_rules(request, earlier, kin, account, expected - reported)
    return found


def _by_rules(
    request: Request, prompt: ProviderPrompt, earlier: Request | None, kin: Kin, account: Account
) -> Loss | None:
    read = account.split.read
    reasons = {each.reason: each for each in account.breaks}
    if earlier is None or earlier.prompt is None:
        return None
    shared = sum(part.tokens for part in prompt.parts[: kin.shared])

    def lost(code: Code, tokens: int, path: str = "", **more: object) -> Loss | None:
        if tokens < LEAST:
            return None
        return Loss(code, request, earlier, kin.shared, min(tokens, prompt.tokens - read), path, **more)  # type: ignore[arg-type]

    def told(code: Code, each: Break, tokens: int | None = None) -> Loss | None:
        where = Where(each.path, each.offset, each.before, each.after) if each.path else None
        return lost(code, each.tokens if tokens is None else tokens, each.path or "", where=where, detail=each.detail)

    if each := reasons.get(BreakReason.NOT_ASKED):
        return told(Code.MARK_MISSING, each, shared)
    if each := reasons.get(BreakReason.BELOW_MINIMUM):
        return told(Code.BELOW_MINIMUM, each, shared) if any(part.breakpoint for part in prompt.parts) else None
    if each := reasons.get(BreakReason.MODEL_CHANGED):
        return told(Code.MODEL_SWITCHED, each) if kin.continues else None
    if each := reasons.get(BreakReason.KEY_CHANGED):
        return told(Code.ISOLATED, each, min(each.tokens, shared))
    differs = None
    if CHANGED & reasons.keys():
        continued = kin.continues or request.conversation == earlier.conversation
        differs = contrast(earlier.prompt, prompt, continued=continued, last_message=last_message(earlier))
    if each := reasons.get(BreakReason.SETTINGS_CHANGED):
        head = sum(part.tokens for part in prompt.parts if part.level is not Level.MESSAGES)
        if kin.continues or shared >= max(LEAST, head):
            return told(Code.PARAMS_CHANGED, each, min(each.tokens, max(0, shared - read)))
    entry = next((each for reason, each in reasons.items() if reason in _PLAIN), None)
    unread = shared - read - (entry.tokens if entry else 0)
    if differs is not None and _outweighs(differs, unread, entry):
        tokens = differs.tokens + max(0, unread)
        return lost(differs.code, tokens, differs.path, where=differs.where, detail=differs.detail, contrast=differs)
    if entry is not None:
        return told(_PLAIN[entry.reason], entry)
    if unread >= LEAST and (CHANGED | {BreakReason.NEVER_WRITTEN}) & reasons.keys():
        return _misplaced(request, prompt, earlier, kin, unread)
    return None


def _outweighs(differs: Contrast, unread: int, entry: Break | None) -> bool:
    """Whether the difference is the cause, rather than an entry that could not be read or a mark behind text that
    moves. A rewritten history is one wherever the marks stand; a changing span may just need a mark before it."""
    if entry is not None and entry.tokens > differs.tokens:
        return False
    return differs.code is not Code.VOLATILE_PREFIX or differs.tokens >= unread


def _misplaced(request: Request, prompt: ProviderPrompt, earlier: Request, kin: Kin, tokens: int) -> Loss | None:
    """The same text was sent before, and no entry ends where both are still the same."""
    assert earlier.prompt is not None
    marks = [index for index, part in enumerate(earlier.prompt.parts) if part.breakpoint]
    if marks:
        moved = earlier.prompt.parts[marks[-1]]
        detail = f"The mark stands on `{moved.path}`, which does not come back; {tokens} tokens before it do."
        after = prompt.parts[kin.shared].content[:80] if kin.shared < len(prompt.parts) else ""
        where = Where(moved.path, 0, moved.content[:80], after)
        return Loss(Code.MARK_ON_CHANGING_CONTENT, request, earlier, kin.shared, tokens, moved.path, where, detail)
    if "prompt_cache_options.mode" in prompt.settings:
        last = earlier.prompt.parts[-1]
        detail = f"The implicit breakpoint ends with `{last.path}`, which changes; {tokens} tokens before it do not."
        where = Where(last.path, 0)
        return Loss(Code.IMPLICIT_BREAKPOINT_ON_SUFFIX, request, earlier, kin.shared, tokens, "messages", where, detail)
    return None


def _against_rules(request: Request, earlier: Request | None, kin: Kin, account: Account, tokens: int) -> Loss:
    if request.began is None and earlier is not None and 0 <= request.at - earlier.at < _TOGETHER:
        detail = f"The request before with the same prefix began {request.at - earlier.at:.1f} s earlier."
        return Loss(Code.PARALLEL_FAN_OUT, request, earlier, kin.shared, tokens, "", detail=detail, proven=False)
    excluded = "marks, minimum, model, key, tools, system text, messages, settings, lifetime and look-back are excluded"
    split = request.usage.split if request.usage else account.split
    ruled = f"By rule {account.rule} {account.split.read} tokens should be read, the provider reports {split.read}"
    detail = f"{ruled}: {excluded}."
    return Loss(Code.UNEXPLAINED, request, earlier, kin.shared, tokens, "", detail=detail, proven=False)


def loss_of_counters(request: Request, earlier: Request | None) -> Loss | None:
    """What counters alone suggest, where there is no body: the conversation was read before and is written anew."""
    if earlier is None or request.usage is None or earlier.usage is None or earlier.model != request.model:
        return None
    before, now = earlier.usage.split, request.usage.split
    had = before.read + before.written_tokens
    if had < 1024 or now.read >= had // 2 or now.prompt_tokens < had or not (request.timed and earlier.timed):
        return None
    gap = request.at - earlier.at
    lifetime = 3600.0 if "1h" in before.written else 300.0
    tokens = had - now.read
    if before.written and gap > lifetime:
        detail = f"{gap:.0f} s lie between the two requests, and what was written lives {lifetime:.0f} s."
        return Loss(Code.TTL_EXPIRED, request, earlier, 0, tokens, "", detail=detail, proven=False)
    detail = (
        f"{had} tokens were in the cache {gap:.0f} s before and {now.read} are read; without bodies no cause shows."
    )
    return Loss(Code.UNEXPLAINED, request, earlier, 0, tokens, "", detail=detail, proven=False)


def isolated(request: Request, prompt: ProviderPrompt, other: Request) -> Loss | None:
    """A prefix that another key has warm."""
    tokens = sum(part.tokens for part in prompt.parts if part.level is not Level.MESSAGES)
    if tokens < LEAST or other.model != request.model:
        return None
    detail = (
        f"The key {other.key or '(none)'} sent the same tools and system text {request.at - other.at:.0f} s before."
    )
    return Loss(Code.ISOLATED, request, other, 0, tokens, "", detail=detail)
