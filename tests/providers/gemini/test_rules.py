from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kvledger.errors import InvalidRequestError
from kvledger.providers.gemini.rules import GeminiRules
from kvledger.providers.prompt import Level
from tests.providers.letters import NOON, Letters, World, reasons


def ask(model: str, *texts: str, **fields: Any) -> dict[str, Any]:
    contents = [{"role": "model" if turn % 2 else "user", "parts": [{"text": t}]} for turn, t in enumerate(texts)]
    return {"model": model, "contents": contents, **fields}


MINIMUMS = [
    ("gemini-api", "gemini-2.5-flash", "2026-05-20", 1024),
    ("gemini-api", "gemini-2.5-flash", "2026-10-20", 2048),
    ("gemini-api", "gemini-2.5-pro", "2026-05-20", 4096),
    ("gemini-api", "gemini-2.5-pro", "2026-10-20", 2048),
    ("gemini-api", "gemini-3-flash-preview", "2026-05-20", 1024),
    ("gemini-api", "gemini-3-pro-preview", "2026-05-20", 4096),
    ("gemini-api", "gemini-3.1-pro-preview", "2026-10-20", 4096),
    ("gemini-api", "gemini-3.8-flash", "2026-10-20", 4096),
    ("gemini-api", "models/gemini-3.5-flash", "2026-10-20", 4096),
    ("vertex", "gemini-2.5-flash", "2026-10-20", 2048),
    ("vertex", "gemini-3.5-flash", "2026-10-20", 4096),
    ("vertex", "gemini-3.8-flash", "2026-10-20", 6144),
    ("vertex", "gemini-3.1-pro-preview", "2026-10-20", 6144),
]


@pytest.mark.parametrize(("platform", "model", "day", "minimum"), MINIMUMS)
def test_each_minimum_at_its_edge(platform, model, day, minimum):
    at = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    for length, read in ((minimum - 1, 0), (minimum, minimum)):
        world = World(GeminiRules(platform), at=at)
        world.ask(ask(model, "x" * length))
        account = world.ask(ask(model, "x" * length))
        assert account.split.read == read
        assert not account.certain
        if not read:
            assert reasons(account) == ["below_minimum"]
            assert str(minimum) in account.breaks[0].detail


@pytest.mark.parametrize(("gap", "read"), [(86_400.0, 3000), (86_401.0, 0)])
def test_everything_expires_a_day_after_its_creation_whatever_hits(gap, read):
    world = World(GeminiRules())
    world.ask(ask("gemini-2.5-pro", "x" * 3000))
    for _ in range(3):
        assert world.ask(ask("gemini-2.5-pro", "x" * 3000), after=20_000).split.read == 3000
    account = world.ask(ask("gemini-2.5-pro", "x" * 3000), after=gap - 60_000)
    assert account.split.read == read
    assert reasons(account) == ([] if read else ["expired"])


def test_a_changed_system_instruction_is_found_by_its_path():
    world = World(GeminiRules())
    first = ask("gemini-2.5-flash", "u" * 3000, systemInstruction={"parts": [{"text": "It is 10:00."}]})
    world.ask(first)
    account = world.ask({**first, "systemInstruction": {"parts": [{"text": "It is 10:01."}]}})
    assert account.split.read == 0
    assert reasons(account) == ["system_changed"]
    found = account.breaks[0]
    assert (found.path, found.offset, found.tokens) == ("systemInstruction.parts[0]", 10, 3012)


def test_parts_in_googles_order():
    body = ask(
        "m",
        "hi",
        tools=[{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}, {"googleSearch": {}}],
        systemInstruction={"parts": [{"text": "s"}]},
        generationConfig={"temperature": 1},
    )
    prompt = GeminiRules().prompt(body, scope="", counter=Letters(), api="generate")
    assert [(part.level, part.path) for part in prompt.parts] == [
        (Level.TOOLS, "tools[0].functionDeclarations[0]"),
        (Level.TOOLS, "tools[0].functionDeclarations[1]"),
        (Level.TOOLS, "tools[1]"),
        (Level.SYSTEM, "systemInstruction.parts[0]"),
        (Level.MESSAGES, "contents[0].parts[0]"),
    ]
    assert prompt.settings == {"generationConfig": '{"temperature":1}'}


def test_pictures_are_kept_as_digests():
    body = {"model": "m", "contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "A" * 10_000}}]}]}
    (part,) = GeminiRules().prompt(body, scope="", counter=Letters()).parts
    assert len(part.content) < 200
    assert part.kind == "inlineData"


def test_dropped_hits_are_named_and_come_again_with_the_seed():
    def run(drop: float, seed: int) -> list[tuple[int, list[str]]]:
        world = World(GeminiRules(drop=drop, seed=seed))
        accounts = [world.ask(ask("gemini-2.5-flash", "x" * 3000)) for _ in range(200)]
        return [(account.split.read, reasons(account)) for account in accounts[1:]]

    assert run(0, 1) == [(3000, [])] * 199
    assert run(1, 1) == [(0, ["dropped"])] * 199
    some = run(0.3, 1)
    assert some == run(0.3, 1)
    assert some != run(0.3, 2)
    assert set(map(str, some)) == {"(3000, [])", "(0, ['dropped'])"}
    assert 30 <= sum(read == 0 for read, _ in some) <= 90  # 60 expected; 5 standard deviations are 32


@pytest.mark.parametrize(("after", "read"), [(300.0, 500), (301.0, 0)])
def test_a_cached_content_is_read_whole_until_it_expires(after, read):
    expiry = datetime.fromtimestamp(NOON + 300, UTC).isoformat()
    cached = {"name": "cachedContents/x", "expireTime": expiry, "contents": [{"parts": [{"text": "c" * 500}]}]}
    world = World(GeminiRules(drop=1.0))
    account = world.ask(ask("gemini-2.5-flash", "hi", cachedContent=cached), after=after)
    assert (account.split.read, account.split.fresh) == (read, 502 - read)
    assert reasons(account) == ([] if read else ["expired"])
    assert account.certain
    assert account.rule == "gemini/explicit/2.5/2026-10"
    assert len(world.entries) == 0


def test_a_cached_content_of_which_only_the_name_is_known_is_not_judged():
    account = World(GeminiRules()).ask(ask("gemini-2.5-flash", "hi", cachedContent="cachedContents/x"))
    assert (account.split.read, account.certain) == (0, False)


def test_unknown_models_platforms_and_shares():
    with pytest.raises(InvalidRequestError, match="did you mean"):
        World(GeminiRules()).ask(ask("gemini-5-flash", "hi"))
    with pytest.raises(ValueError, match="use one of gemini-api, vertex"):
        GeminiRules("azure")
    with pytest.raises(ValueError, match="give 0 to 1"):
        GeminiRules(drop=1.5)
