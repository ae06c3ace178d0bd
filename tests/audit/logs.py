"""Logs made for the tests: conversations in each dialect, and what a provider would have reported for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvledger.audit.audit import Options, audit
from kvledger.audit.findings import Audit
from kvledger.audit.normalise import Bytes
from kvledger.audit.record import Record, Source, Unread
from kvledger.ledger.account import Usage
from kvledger.ledger.prices import Prices
from kvledger.providers.catalogue import rulebook
from kvledger.providers.entries import MemoryEntries

PRICES = Prices()
START = 1_795_000_000.0  # 2026-11-18
MARK = {"cache_control": {"type": "ephemeral"}}

DIALECTS = {
    "anthropic": ("anthropic", "messages", "claude-sonnet-4-6"),
    "openai-steps": ("openai", "chat", "gpt-5.2"),
    "openai-breakpoints": ("openai", "chat", "gpt-5.6-sol"),
    "openai-responses": ("openai", "responses", "gpt-5.2"),
    "gemini": ("gemini", "generate", "gemini-2.5-pro"),
    "deepseek": ("deepseek", "chat", "deepseek-chat"),
    "kimi": ("kimi", "chat", "kimi-k2.5"),
}

WORDS = (
    "ledger",
    "prefix",
    "answer",
    "harbour",
    "window",
    "copper",
    "lantern",
    "orchard",
    "signal",
    "meadow",
    "quarry",
)


def prose(seed: str, tokens: int) -> str:
    """Text of about so many tokens (4 bytes each) that no other seed gives."""
    text, number = [], 0
    while sum(map(len, text)) + len(text) < 4 * tokens:
        text.append(f"{WORDS[(number * 7 + len(seed)) % len(WORDS)]} {seed}{number}.")
        number += 1
    return " ".join(text)[: 4 * tokens]


SYSTEM = prose("s", 6000)
TOOLS = [
    {
        "name": f"tool_{name}",
        "description": prose(f"t{name}", 400),
        "input_schema": {"type": "object", "properties": {}},
    }
    for name in "abcdef"
]


def turns(count: int, seed: str = "q", tokens: int = 300) -> list[str]:
    """Alternating questions and answers; an odd count ends with a question."""
    return [prose(f"{seed}{number}-", tokens) for number in range(count)]


def body(dialect: str, system: str, said: Sequence[str], /, **more: Any) -> dict[str, Any]:
    """A chat in a dialect, the user first; Anthropic's asks for automatic caching."""
    provider, api, model = DIALECTS[dialect]
    roles = ["user" if index % 2 == 0 else "assistant" for index in range(len(said))]
    if provider == "anthropic":
        messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
        return {"model": model, "max_tokens": 100, "system": system, "messages": messages, **MARK, **more}
    if provider == "gemini":
        contents = [
            {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
            for role, text in zip(roles, said, strict=True)
        ]
        return {"model": model, "systemInstruction": {"parts": [{"text": system}]}, "contents": contents, **more}
    messages = [{"role": "system", "content": system}]
    messages += [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    if api == "responses":
        return {"model": model, "instructions": system, "input": messages[1:], **more}
    return {"model": model, "messages": messages, **more}


def record(number: int, dialect: str, sent: Mapping[str, Any] | None, at: float | None = None, **more: Any) -> Record:
    provider, api, model = DIALECTS[dialect]
    model = str((sent or {}).get("model") or model)
    when = START + 30.0 * number if at is None else START + at
    return Record(Source("log.jsonl", number + 1), provider, api, model, id=f"r{number}", at=when, body=sent, **more)


def records(dialect: str, bodies: Iterable[Mapping[str, Any]], times: Sequence[float] | None = None) -> list[Record]:
    """One record per body, half a minute apart unless `times` says otherwise."""
    return [
        record(number, dialect, sent, None if times is None else times[number]) for number, sent in enumerate(bodies)
    ]


def reported(log: Sequence[Record]) -> list[Record]:
    """The log with the usage that a provider which keeps to its rules reports."""
    entries, found = MemoryEntries(), []
    for each in log:
        rules = rulebook(each.provider)
        assert each.body is not None
        assert each.at is not None
        sent = {**each.body, "model": each.model}
        prompt = rules.prompt(sent, scope=each.key or "", counter=Bytes(), api=each.api)
        verdict = rules.judge(prompt, entries, each.at)
        entries.put(verdict.renewed)
        began = max(each.at, each.began or each.at)
        entries.put(replace(entry, readable_at=began) for entry in verdict.written)
        found.append(replace(each, usage=Usage(verdict.account.split, output=100)))
    return found


def audited(log: Iterable[Record | Unread], **options: Any) -> Audit:
    return audit(log, prices=PRICES, options=Options(assumed_at=START, **{"what_if": False, **options}))


def codes(result: Audit) -> list[str]:
    return [finding.code.value for finding in result.findings]
