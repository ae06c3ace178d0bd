"""Each form of log gives the records that it says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard

from kvledger.ledger.account import Split
from kvledger.ledger.store import Ledger
from tests.audit.readers.logs_of import (
    CHAT,
    GEMINI,
    HAR,
    LANGFUSE,
    LITELLM,
    MESSAGES,
    OTLP,
    RESPONSES,
    STREAM,
    read,
    turn,
    write,
)
from tests.ledger.samples import receipt

EXCHANGES = [
    (CHAT, "openai", "chat", "chatcmpl-1", Split(3000, 1024, {}, 1976), 1770022800.0),
    (RESPONSES, "openai", "responses", "resp_1", Split(2000, 0, {}, 2000), 1770022800.0),
    (MESSAGES, "anthropic", "messages", "msg_1", Split(10057, 7, {"5m": 10000}, 50), 1796032800.0),
    (GEMINI, "gemini", "", "g1", Split(12000, 8192, {}, 3808), 1794474000.0),
]


@pytest.mark.parametrize(("item", "provider", "api", "identity", "split", "at"), EXCHANGES)
def test_requests_with_responses(
    tmp_path: Path, item: Any, provider: str, api: str, identity: str, split: Split, at: float
) -> None:
    (record,), unread = read(write(tmp_path / "log.jsonl", item))
    assert not unread
    assert (record.provider, record.api, record.id, record.at) == (provider, api, identity, at)
    assert record.usage is not None
    assert record.usage.split == split
    assert record.body == item["request"]


def test_a_responses_record_says_what_its_answer_adds_to_the_chain(tmp_path: Path) -> None:
    (record,), _ = read(write(tmp_path / "log.jsonl", RESPONSES))
    assert record.output == RESPONSES["response"]["output"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress, lambda data: data])
def test_compressed_or_not(tmp_path: Path, pack: Any) -> None:
    (tmp_path / "log").write_bytes(pack(json.dumps(CHAT).encode() + b"\n" + json.dumps(MESSAGES).encode()))
    records, unread = read(tmp_path / "log")
    assert [record.provider for record in records] == ["openai", "anthropic"]
    assert not unread


@pytest.mark.parametrize("layout", ["array", "pretty", "array a line", "object"])
def test_documents(tmp_path: Path, layout: str) -> None:
    both = [CHAT, MESSAGES]
    text = {
        "array": json.dumps(both),
        "pretty": json.dumps(both, indent=2),
        "array a line": "[\n" + ",\n".join(map(json.dumps, both)) + "\n]\n",
        "object": json.dumps(CHAT, indent=2),
    }[layout]
    (tmp_path / "log.json").write_text(text)
    records, unread = read(tmp_path / "log.json")
    assert len(records) == (1 if layout == "object" else 2)
    assert not unread


def test_a_body_with_its_usage_beside_it_keeps_its_parameters_and_nothing_else(tmp_path: Path) -> None:
    row = {**CHAT["request"], "temperature": 0, "timestamp": "2026-02-02T09:00:00Z", "usage": CHAT["response"]["usage"]}
    (record,), _ = read(write(tmp_path / "log.jsonl", row))
    assert record.body == {**CHAT["request"], "temperature": 0}
    assert record.usage is not None


def test_a_litellm_body_is_given_as_the_provider_got_it(tmp_path: Path) -> None:
    (record,), unread = read(write(tmp_path / "log.jsonl", LITELLM))
    assert not unread
    assert (record.provider, record.model, record.key, record.began) == (
        "anthropic",
        "claude-sonnet-4-5",
        "team-a",
        1794474001.0,
    )
    assert record.usage is not None
    assert record.usage.split == Split(12307, 300, {"5m": 12000}, 7)
    assert record.body is not None
    assert record.body["system"] == [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    assert [message["role"] for message in record.body["messages"]] == ["user", "assistant", "user"]
    assert record.body["messages"][1]["content"][0]["type"] == "tool_use"
    assert record.body["tools"][0]["input_schema"] == {"type": "object"}


def test_litellm_answers_from_its_own_cache_are_told_of_and_not_counted(tmp_path: Path) -> None:
    records, unread = read(write(tmp_path / "log.jsonl", {**LITELLM, "cache_hit": True}))
    assert not records
    assert "response cache" in unread[0].reason


@pytest.mark.parametrize("nested", [False, True])
def test_langfuse(tmp_path: Path, nested: bool) -> None:
    item = {"id": "t1", "sessionId": "s", "observations": [LANGFUSE]} if nested else LANGFUSE
    (record,), unread = read(write(tmp_path / "log.jsonl", item))
    assert not unread
    assert record.usage is not None
    assert record.usage.split == Split(780, 700, {"5m": 30}, 50)
    assert record.conversation == ("s" if nested else None)
    assert record.body is not None
    assert record.body["system"] == [{"type": "text", "text": "be brief"}]


def test_otlp_spans(tmp_path: Path) -> None:
    (record,), unread = read(write(tmp_path / "log.json", OTLP))
    assert record.usage is not None
    assert record.usage.split == Split(4000, 1024, {}, 2976)
    assert (record.at, record.conversation, record.id) == (1794474000.0, "c7", "chatcmpl-7")
    assert record.body is not None
    assert [message["role"] for message in record.body["messages"]] == ["system", "user"]
    assert "no requests to a model" in unread[0].reason


def test_har_with_a_stream(tmp_path: Path) -> None:
    (tmp_path / "x.har").write_text(json.dumps(HAR, indent=1))
    (record,), unread = read(tmp_path / "x.har")
    assert record.usage is not None
    assert (record.usage.split, record.usage.output) == (Split(904, 900, {}, 4), 41)
    assert (record.id, record.complete) == ("msg_7", True)
    assert record.at is not None
    assert record.began == record.at + 0.5
    assert unread[0].count == 1


def test_a_stream_that_was_cut_off_is_no_complete_response(tmp_path: Path) -> None:
    cut = STREAM[: STREAM.index("event: message_delta")]
    (record,), _ = read(write(tmp_path / "log.jsonl", {**MESSAGES, "response": cut}))
    assert not record.complete


@pytest.mark.parametrize("order", [("in.jsonl", "out.jsonl"), ("z-in.jsonl", "out.jsonl")])
def test_batch_files_are_joined_whatever_their_order(tmp_path: Path, order: tuple[str, str]) -> None:
    asked, answered = order
    body = {**CHAT["request"]}
    openai = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    anthropic = {"custom_id": "b", "params": MESSAGES["request"]}
    alone = {"custom_id": "c", "params": MESSAGES["request"]}
    write(tmp_path / asked, openai, anthropic, alone)
    write(
        tmp_path / answered,
        {"id": "r", "custom_id": "a", "response": {"status_code": 200, "body": CHAT["response"]}, "error": None},
        {"custom_id": "b", "result": {"type": "succeeded", "message": MESSAGES["response"]}},
        {"custom_id": "d", "result": {"type": "errored", "error": {"type": "x"}}},
    )
    records, unread = read(tmp_path)
    assert [(r.provider, r.usage and r.usage.service_tier) for r in records] == [
        ("openai", "batch"),
        ("anthropic", "batch"),
        ("anthropic", None),
    ]
    assert len(unread) == 1


def test_claude_code_asks_when_the_line_before_the_answer_was_written(tmp_path: Path) -> None:
    user = {"type": "user", "sessionId": "s", "uuid": "u", "timestamp": "2026-11-30T10:00:00Z", "message": {}}
    (record,), unread = read(write(tmp_path / "s.jsonl", {"type": "summary", "leafUuid": "x"}, user, turn("s", "m", 9)))
    assert not unread
    assert (record.at, record.began, record.conversation, record.body) == (1796032800.0, 1796032805.0, "s", None)


def test_codex_counts_a_repeated_total_once(tmp_path: Path) -> None:
    last = {"input_tokens": 9000, "cached_input_tokens": 7000, "output_tokens": 50, "reasoning_output_tokens": 20}
    count = {
        "timestamp": "2026-11-30T10:00:05Z",
        "type": "event_msg",
        "payload": {
            "type": "token_count",
            "info": {"total_token_usage": {"total_tokens": 9050}, "last_token_usage": last},
        },
    }
    meta = {"type": "session_meta", "payload": {"id": "c1"}}
    context = {"type": "turn_context", "payload": {"model": "gpt-5.2"}}
    (record,), unread = read(write(tmp_path / "rollout.jsonl", meta, context, count, count))
    assert not unread
    assert record.usage is not None
    assert (record.usage.split, record.usage.reasoning) == (Split(9000, 7000, {}, 2000), 20)
    assert record.conversation == "c1"


def test_the_ledger_and_its_export(tmp_path: Path) -> None:
    one = receipt()
    ledger = Ledger(str(tmp_path / "ledger.db"))
    ledger.append([one])
    ledger.close()
    (tmp_path / "export.json").write_text("[\n" + one.encoded().decode() + "\n]\n")
    for name in ("ledger.db", "export.json"):
        (record,), unread = read(tmp_path / name)
        assert not unread
        assert (record.id, record.usage, record.at) == (one.id, one.usage, one.at)
