"""A log for each public failure: the right finding and no other. Names say which failure."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from kvledger.audit.record import Record, Source
from kvledger.ledger.account import Split, Usage
from tests.audit.logs import (
    DIALECTS,
    MARK,
    START,
    SYSTEM,
    TOOLS,
    audited,
    body,
    codes,
    prose,
    record,
    records,
    reported,
    turns,
)

MARKED = [{"type": "text", "text": SYSTEM, **MARK}]
PLAIN = {"cache_control": None}


def only(log, code, *, usage=True, **options):
    result = audited(reported(log) if usage else log, **options)
    assert codes(result) == [code], [(each.code, each.where, each.detail) for each in result.findings]
    return result.findings[0]


def clock(number: int) -> str:
    return f"Current time: 2026-11-18T10:{number:02d}:{7 * number % 60:02d}Z\n"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_home_generative_agent_617_a_clock_at_the_start_of_the_system_text(dialect):
    said = turns(9)
    bodies = [body(dialect, clock(number) + SYSTEM, said[: 2 * number + 1]) for number in range(5)]
    found = only(records(dialect, bodies), "VOLATILE_PREFIX")
    assert found.requests == 4
    assert found.saves is None or found.saves > 0
    assert found.where is not None
    assert "10:0" in found.where.before
    assert found.change.patch[0]["op"] == "replace"
    assert (
        "2026" not in str(found.change.patch[0]["value"])[:40] or "10:0" not in str(found.change.patch[0]["value"])[:40]
    )


def test_meshweaver_2108_a_clock_before_single_questions():
    bodies = [
        body(
            "anthropic",
            clock(n) + SYSTEM,
            turns(1, f"q{n}x"),
            system=[{"type": "text", "text": clock(n) + SYSTEM, **MARK}],
            **PLAIN,
        )
        for n in range(5)
    ]
    found = only(records("anthropic", bodies), "VOLATILE_PREFIX")
    assert found.saves is not None
    assert found.saves > 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_word_changed_in_the_middle(dialect):
    middle = len(SYSTEM) // 2
    bodies = [
        body(dialect, SYSTEM[:middle] + word + SYSTEM[middle:], turns(1)) for word in (" red ", " blue ", " green ")
    ]
    only(records(dialect, bodies), "VOLATILE_PREFIX")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_few_shot_examples_reordered(dialect):
    examples = [(prose(f"in{name}", 300), prose(f"out{name}", 300)) for name in "abcd"]
    orders = ([0, 1, 2, 3], [2, 1, 0, 3], [3, 0, 1, 2])
    bodies = [
        body(dialect, SYSTEM, [text for number in order for text in examples[number]] + turns(1, f"q{order[0]}"))
        for order in orders
    ]
    found = only(records(dialect, bodies), "EXAMPLES_REORDERED")
    assert found.requests == 2


def test_examples_reordered_within_the_system_text():
    pieces = [prose(f"e{name}", 500) for name in "abcdef"]
    bodies = [
        body("openai-steps", "\n\n".join(sorted(pieces, key=lambda piece: piece[key])), turns(1)) for key in (6, 9, 3)
    ]
    if len({each["messages"][0]["content"] for each in bodies}) == 1:
        pieces.reverse()
    bodies[1] = body("openai-steps", "\n\n".join(reversed(pieces)), turns(1))
    bodies[2] = body("openai-steps", "\n\n".join([*pieces[3:], *pieces[:3]]), turns(1))
    only(records("openai-steps", bodies), "EXAMPLES_REORDERED")


def tooled(dialect, tools, said):
    if dialect == "gemini":
        tools = [{"functionDeclarations": [{k: v for k, v in each.items() if k != "input_schema"} for each in tools]}]
    elif dialect != "anthropic":
        tools = [{"type": "function", "function": each} for each in tools]
    return body(dialect, SYSTEM, said, tools=tools)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_weknora_1463_tools_in_another_order(dialect):
    said = turns(7)
    orders = [TOOLS, [*TOOLS[2:], *TOOLS[:2]], TOOLS[::-1], [*TOOLS[4:], *TOOLS[:4]]]
    bodies = [tooled(dialect, order, said[: 2 * number + 1]) for number, order in enumerate(orders)]
    found = only(records(dialect, bodies), "TOOLS_REORDERED")
    assert found.saves is None or found.saves > 0
    assert all(move["op"] == "move" for move in found.change.patch)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_claude_code_27048_tools_come_and_go(dialect):
    said = turns(5)
    bodies = [tooled(dialect, tools, said[: 2 * n + 1]) for n, tools in enumerate((TOOLS, TOOLS[1:], TOOLS))]
    found = only(records(dialect, bodies[:2]), "TOOLS_CHANGED")
    assert "tool_a" in found.detail


@pytest.mark.parametrize("dialect", DIALECTS)
def test_keys_in_another_order(dialect):
    said = turns(5)
    turned = [dict(reversed(each.items())) for each in TOOLS]
    bodies = [tooled(dialect, tools, said[: 2 * n + 1]) for n, tools in enumerate((TOOLS, turned, TOOLS))]
    only(records(dialect, bodies[:2]), "KEY_ORDER_CHANGED")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_history_truncated(dialect):
    said = turns(13)
    bodies = [body(dialect, SYSTEM, said[:9]), body(dialect, SYSTEM, [*said[4:11]])]
    found = only(records(dialect, bodies), "HISTORY_REWRITTEN")
    assert "dropped" in found.detail


@pytest.mark.parametrize("dialect", DIALECTS)
def test_claude_code_51764_messages_assembled_anew_on_resume(dialect):
    said = turns(13)
    bodies = [body(dialect, SYSTEM, said[:9]), body(dialect, SYSTEM, [said[0], prose("edited", 300), *said[2:11]])]
    found = only(records(dialect, bodies), "HISTORY_REWRITTEN")
    assert "edited" in found.detail


def test_claude_code_43657_a_listing_that_moves_between_messages():
    said, listing = turns(11), prose("skills", 1500)

    def sent(count, holder):
        texts = [listing + text if number == holder else text for number, text in enumerate(said[:count])]
        return body("anthropic", SYSTEM, texts)

    only(records("anthropic", [sent(5, 0), sent(7, 6), sent(9, 8)]), "HISTORY_REWRITTEN")


def test_model_switched_within_a_conversation():
    said = turns(7)
    bodies = [
        body("anthropic", SYSTEM, said[: 2 * n + 1], model=model)
        for n, model in enumerate(("claude-sonnet-4-6", "claude-opus-4-6", "claude-sonnet-4-6"))
    ]
    only(records("anthropic", bodies), "MODEL_SWITCHED")


def test_thinking_switched_within_a_conversation():
    said = turns(9)
    bodies = [
        body("anthropic", SYSTEM, said[: 2 * n + 1], thinking={"type": "enabled", "budget_tokens": 2000 + 1000 * n})
        for n in range(4)
    ]
    found = only(records("anthropic", bodies), "PARAMS_CHANGED")
    assert found.where is not None
    assert "thinking" in found.where.path


def test_vercel_ai_5883_no_mark_on_the_wire():
    said = turns(7)
    bodies = [body("anthropic", SYSTEM, said[: 2 * n + 1], **PLAIN) for n in range(4)]
    found = only(records("anthropic", bodies), "MARK_MISSING")
    assert found.change.patch == ({"op": "add", "path": "/cache_control", "value": {"type": "ephemeral"}},)
    assert found.saves is not None
    assert found.saves > 0


def test_claude_code_96101_the_mark_on_a_reminder_that_goes():
    said, bodies = turns(9), []
    for number in range(5):
        sent = body("anthropic", SYSTEM, said[: 2 * number + 1], **PLAIN)
        reminder = {"type": "text", "text": f"Reminder {number}: {prose('r', 40)}", **MARK}
        sent["messages"][-1]["content"] = [{"type": "text", "text": said[2 * number]}, reminder]
        bodies.append(sent)
    found = only(records("anthropic", bodies), "MARK_ON_CHANGING_CONTENT")
    assert found.requests == 4
    assert found.saves is not None
    assert found.saves > 0


def test_a_mark_on_the_question_of_single_requests():
    bodies = [body("anthropic", SYSTEM, turns(1, f"q{n}x")) for n in range(5)]
    only(records("anthropic", bodies), "MARK_ON_CHANGING_CONTENT")


def test_more_blocks_than_the_look_back():
    blocks = [{"type": "text", "text": prose(f"b{n}-", 100)} for n in range(30)]
    sent = [
        {"model": "claude-sonnet-4-6", "max_tokens": 10, "system": SYSTEM, **MARK, "messages": [
            {"role": "user", "content": blocks[:count]}]}
        for count in (2, 30)
    ]  # fmt: skip
    found = only(records("anthropic", sent), "LOOKBACK_EXCEEDED")
    assert found.saves is not None
    assert found.saves > 0


def test_langgraph_supervisor_59_below_the_minimum():
    small = prose("small", 1500)
    bodies = [
        body(
            "anthropic",
            small,
            turns(1, f"q{n}x", 30),
            model="claude-haiku-4-5",
            system=[{"type": "text", "text": small, **MARK}],
            **PLAIN,
        )
        for n in range(6)
    ]
    only(records("anthropic", bodies), "BELOW_MINIMUM")


def test_pauses_longer_than_the_lifetime():
    said = turns(9)
    bodies = [body("anthropic", SYSTEM, said[: 2 * n + 1]) for n in range(5)]
    found = only(records("anthropic", bodies, [n * 1200.0 for n in range(5)]), "TTL_EXPIRED")
    assert "1200" in found.detail
    assert found.saves is not None
    assert found.saves > 0


def test_pauses_so_long_that_nothing_pays():
    said = turns(5)
    bodies = [body("anthropic", SYSTEM, said[: 2 * n + 1]) for n in range(3)]
    found = only(records("anthropic", bodies, [n * 90_000.0 for n in range(3)]), "TTL_EXPIRED")
    assert found.saves == 0


def test_writes_that_nobody_reads():
    bodies = [body("anthropic", prose(f"s{n}x", 3000), turns(1, f"q{n}x")) for n in range(6)]
    found = only(records("anthropic", bodies, [n * 400.0 for n in range(6)]), "WRITE_NEVER_READ")
    assert found.saves is not None
    assert found.saves > 0


def test_requests_side_by_side():
    system = [{"type": "text", "text": SYSTEM, **MARK}]
    log = [
        record(
            n,
            "anthropic",
            body("anthropic", SYSTEM, turns(1, f"q{n}x"), system=system, **PLAIN),
            0.1 * n,
            began=START + 4 + n,
        )
        for n in range(5)
    ]
    found = only(log, "PARALLEL_FAN_OUT")
    assert found.requests == 4
    assert found.saves is not None
    assert found.saves > 0


def test_a_cache_key_for_each_request():
    bodies = [body("openai-breakpoints", SYSTEM, turns(2 * n + 1), prompt_cache_key=f"user-{n}") for n in range(4)]
    only(records("openai-breakpoints", bodies), "ISOLATED")


def test_one_prefix_through_two_keys():
    said = turns(9)
    bodies = [body("anthropic", SYSTEM, said[: 2 * n + 1], system=MARKED) for n in range(4)]
    log = [replace(each, key=f"k{n % 2}") for n, each in enumerate(records("anthropic", bodies))]
    only(log, "ISOLATED")


def test_an_implicit_breakpoint_on_the_question():
    bodies = [body("openai-breakpoints", SYSTEM, [prose(f"q{n}x", 300)]) for n in range(5)]
    for each in bodies:  # the static text is no developer message of its own
        each["messages"] = [
            {
                "role": "user",
                "content": [{"type": "text", "text": SYSTEM}, {"type": "text", "text": each["messages"][1]["content"]}],
            }
        ]
    found = only(records("openai-breakpoints", bodies), "IMPLICIT_BREAKPOINT_ON_SUFFIX")
    assert found.saves is not None
    assert found.saves > 0


def test_a_job_that_could_be_a_batch():
    system = [{"type": "text", "text": SYSTEM, **MARK}]
    bodies = [body("anthropic", SYSTEM, turns(1, f"q{n}x"), system=system, **PLAIN) for n in range(60)]
    found = only(records("anthropic", bodies, [4.0 * n for n in range(60)]), "BATCH_POSSIBLE")
    assert found.saves == found.cost


def test_openai_node_1346_the_provider_reports_nothing():
    said = turns(9)
    log = reported(records("anthropic", [body("anthropic", SYSTEM, said[: 2 * n + 1]) for n in range(5)]))
    split = log[3].usage.split
    lost = Split(split.prompt_tokens, 0, {"5m": split.prompt_tokens}, 0)
    log[3] = replace(log[3], usage=replace(log[3].usage, split=lost))
    result = audited(log)
    assert codes(result) == ["UNEXPLAINED"]
    assert result.findings[0].proven is False
    assert result.residuals["provider irregularity"] == 1


def test_counters_alone_suggest_an_expiry():
    def row(number, at, read, written, fresh=10):
        usage = Usage(Split(read + written + fresh, read, {"5m": written}, fresh), 50)
        return Record(
            Source("u.jsonl", number),
            "anthropic",
            "messages",
            "claude-sonnet-4-6",
            at=START + at,
            conversation="c",
            usage=usage,
        )

    result = audited([row(1, 0, 0, 8000), row(2, 60, 8000, 500), row(3, 900, 0, 9000)])
    assert codes(result) == ["TTL_EXPIRED"]
    assert result.findings[0].proven is False
    assert result.findings[0].cost == Decimal("0.0293250")  # 8500 * (3.75 - 0.30) / 10**6
