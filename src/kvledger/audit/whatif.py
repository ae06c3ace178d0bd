"""The same log under another policy: every figure is the cost of a whole replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from hashlib import blake2b

from kvledger.audit import edits
from kvledger.audit.costs import Costs, money
from kvledger.audit.findings import WhatIf
from kvledger.audit.lineage import Kin
from kvledger.audit.marks import best_placement
from kvledger.audit.normalise import ERROR_BAND
from kvledger.audit.replay import Edit, Replay, replay
from kvledger.audit.request import Request
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Usage
from kvledger.ledger.money import quotient, times
from kvledger.providers.catalogue import split_name
from kvledger.providers.prompt import Breakpoint, Level, Part, ProviderPrompt


@dataclass(frozen=True, slots=True)
class Policies:
    """Which policies to try beside the usual ones. `elsewhere` are models, "PROVIDER:MODEL"; `routed` is a share of the
    conversations (0 to 1) and the model they go to; `compacted` at how many tokens a history is cut, and to how many;
    `machine` what a machine of one's own costs in US dollars an hour."""

    elsewhere: tuple[str, ...] = ()
    routed: tuple[float, str] | None = None
    compacted: tuple[int, int] | None = None
    machine: Decimal | None = None


def what_ifs(
    requests: Sequence[Request],
    kins: Sequence[Kin],
    costs: Costs,
    policies: Policies,
    *,
    moves: Sequence[Edit],
    seconds: float,
) -> list[WhatIf]:
    """Every policy on the log. `moves` are the changes that put static text first, of the findings."""

    def told(name: str, text: str, edit: Edit | None, **more: Callable[[Usage], Usage]) -> WhatIf:
        return _told(name, text, replay(requests, costs, edit, **more))  # type: ignore[arg-type]

    def static_first(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        for move in moves:
            prompt = move(request, prompt)
        return prompt

    found = [
        told("longer-lifetime", "Every entry asked for with the longer lifetime that is sold.", edits.longer_lived),
        told("best-marks", "Marks placed best, knowing what followed.", best_placement(requests, kins, costs)),
        told("static-first", "Changing text behind the static text.", static_first),
        told("tool-order", "Tools in one fixed order.", edits.sorted_tools),
        told("batch", "All requests as a batch.", None, bill=lambda usage: replace(usage, service_tier="batch")),
    ]
    found += [_elsewhere(requests, costs, name) for name in policies.elsewhere]
    if policies.routed is not None:
        found.append(_routed(requests, costs, *policies.routed))
    if policies.compacted is not None:
        most, to = policies.compacted
        text = f"Histories cut to {to} tokens whenever they reach {most}; the summary itself is not billed."
        found.append(told("compaction", text, _compacted(most, to)))
    if policies.machine is not None:
        cost = quotient(times(max(1, int(seconds)), policies.machine), 3600)
        text = f"A machine of one's own at {policies.machine} USD an hour, for as long as the log lasts."
        found.append(WhatIf("self-hosting", text, cost, None))
    return found


def _told(name: str, text: str, result: Replay, band: float = 0.0) -> WhatIf:
    if not result.tokens:
        return WhatIf(name, text, None, None, unknown="the log has no body that could be replayed")
    if result.cost is None or result.high is None:
        return WhatIf(name, text, None, result.hit_rate, unknown="a price is not known")
    low, high = money(result.cost), money(result.high)
    if band:
        low, high = times(low, Decimal(str(1 - band))), times(high, Decimal(str(1 + band)))
    in_doubt = low != high
    return WhatIf(
        name, text, money(result.cost), result.hit_rate, low if in_doubt else None, high if in_doubt else None
    )


def _elsewhere(requests: Sequence[Request], costs: Costs, name: str) -> WhatIf:
    text = f"All requests to {name}, with marks at the end of the system text and of the prompt where it takes any."
    try:
        provider, model = split_name(name)
    except InvalidRequestError as error:
        return WhatIf(f"model {name}", text, None, None, unknown=str(error))
    result = replay(requests, costs, _sent_to(provider.name, model), provider=provider.name)
    return _told(f"model {name}", f"{text} Token counts differ between models by up to a quarter.", result, ERROR_BAND)


def _sent_to(provider: str, model: str) -> Edit:
    """The same parts for another provider's rules, with marks where that has them."""
    ttl = "30m" if provider in ("openai", "azure") else "5m"
    settings = {"prompt_cache_options.mode": "explicit"} if provider in ("openai", "azure") else {}

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        parts = [replace(part, breakpoint=None) if part.breakpoint else part for part in prompt.parts]
        head = [index for index, part in enumerate(parts) if part.level is not Level.MESSAGES]
        for index in {*head[-1:], *range(len(parts))[-1:]}:
            parts[index] = replace(parts[index], breakpoint=Breakpoint(ttl))
        return ProviderPrompt(provider, model, prompt.scope, tuple(parts), settings)

    return edit


def _routed(requests: Sequence[Request], costs: Costs, share: float, name: str) -> WhatIf:
    text = f"{share:.0%} of the conversations, drawn by their names, to {name}."
    title = f"route {share:.0%} to {name}"
    try:
        provider, model = split_name(name)
    except InvalidRequestError as error:
        return WhatIf(title, text, None, None, unknown=str(error))
    there = [request for request in requests if _drawn(request) < share]
    here = [request for request in requests if _drawn(request) >= share]
    moved, stays = replay(there, costs, _sent_to(provider.name, model), provider=provider.name), replay(here, costs)
    both = Replay(
        None if moved.cost is None or stays.cost is None else moved.cost + stays.cost,
        None if moved.high is None or stays.high is None else moved.high + stays.high,
        moved.tokens + stays.tokens,
        moved.read + stays.read,
    )
    return _told(title, text, both)


def _drawn(request: Request) -> float:
    name = f"{request.key}\0{request.conversation}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") / 2**64


def _compacted(most: int, to: int) -> Edit:
    """Cuts a conversation's oldest messages when it has `most` tokens, and puts a summary in their place."""
    cut: dict[tuple[str, str], tuple[int, Part]] = {}

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        name = (request.key, request.conversation)
        head = [part for part in prompt.parts if part.level is not Level.MESSAGES]
        messages = [part for part in prompt.parts if part.level is Level.MESSAGES]
        gone, summary = cut.get(name, (0, None))
        gone = min(gone, max(0, len(messages) - 1))
        left = sum(part.tokens for part in (*head, *messages[gone:])) + (summary.tokens if summary else 0)
        if left >= most:
            fixed, keep = sum(part.tokens for part in head), len(messages) - 1
            room = max(0, to - fixed - messages[keep].tokens) if messages else 0
            gone = keep
            summary = Part("messages", Level.MESSAGES, "text", f"summary {request.index}", room, "user")
            cut[name] = (gone, summary)
        if summary is None:
            return prompt
        return edits.with_parts(prompt, (*head, summary, *messages[gone:]))

    return edit
