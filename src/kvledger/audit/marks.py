"""The best marks for every request of a log, as an edit for a replay."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from kvledger.audit.costs import Costs
from kvledger.audit.edits import with_parts
from kvledger.audit.lineage import Kin
from kvledger.audit.minimum import minimum_of
from kvledger.audit.placement import Rate, best_marks
from kvledger.audit.replay import Edit
from kvledger.audit.request import Request
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Split, Usage
from kvledger.providers.prompt import Breakpoint, ProviderPrompt

MARKED = {"anthropic": "5m", "bedrock": "5m", "vertex-anthropic": "5m"}
"""Providers whose cache works by marks alone, with the lifetime of a mark that names none."""

_LIFETIME = 300.0


def best_placement(requests: Sequence[Request], kins: Sequence[Kin], costs: Costs) -> Edit:
    """Put the marks of each prompt where they cost least, given the entries that earlier ones left and those that
    follow it within the lifetime. Prompts of providers without marks stay as they are.

    Each choice is exact (`placement`); all together are as good as choices one after another can be.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    for request, kin in zip(requests, kins, strict=True):
        if kin.earlier >= 0 and kin.shared and request.at - requests[kin.earlier].at <= _LIFETIME:
            followers[kin.earlier].append(kin.shared - 1)
    alive: dict[tuple[str, str, str, tuple[int, ...]], float] = {}
    lengths: dict[tuple[str, str], set[int]] = defaultdict(set)

    def edit(request: Request, prompt: ProviderPrompt) -> ProviderPrompt:
        rate = _rate(request, costs) if request.provider in MARKED else None
        if rate is None or not prompt.parts:
            return prompt
        minimum = minimum_of(request)
        tokens = list(accumulate(part.tokens for part in prompt.parts))
        scope = (request.provider, request.key, request.model)

        def big(end: int) -> bool:
            return tokens[end] >= minimum and prompt.parts[end].kind not in ("thinking", "redacted_thinking")

        entries = [
            length - 1
            for length in sorted(lengths[request.key, request.model])
            if length <= len(request.ids)
            and alive.get((*scope, request.ids[:length]), -1.0) >= request.at
            and big(length - 1)
        ]
        wanted = [each for each in followers.get(request.index, ()) if each < len(tokens)]
        ends = [max((end for end in range(each + 1) if big(end)), default=-1) for each in wanted]
        chosen = best_marks(tokens, entries, ends, rate)
        for end in {*chosen, *(each for each in entries if each in chosen)}:
            alive[(*scope, request.ids[: end + 1])] = request.at + _LIFETIME
            lengths[request.key, request.model].add(end + 1)
        mark = Breakpoint(MARKED[request.provider])
        return with_parts(
            prompt,
            (
                replace(part, breakpoint=mark if index in chosen else None)
                if (part.breakpoint is not None or index in chosen)
                else part
                for index, part in enumerate(prompt.parts)
            ),
        )

    return edit


def _rate(request: Request, costs: Costs) -> Rate | None:
    """Prices of one token each; None for a model whose prices, or whose rules, are not known."""
    length = request.tokens
    one = [
        costs.cost(request, Usage(Split(length + 1, read, written, length + 1 - read - sum(written.values()))))
        for read, written in ((0, {}), (0, {"5m": 1}), (1, {}))
    ]
    plain = costs.cost(request, Usage(Split(length, fresh=length)))
    if isinstance(plain, str) or any(isinstance(each, str) for each in one):
        return None
    try:
        minimum_of(request)
    except InvalidRequestError:
        return None
    fresh, write, read = (int(each) - plain for each in one)
    return Rate(fresh, write, read)
