"""What cannot be read is told by its line, and the rest is read; one response counts once."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.audit.readers import lines
from kvledger.audit.readers.fields import seconds
from kvledger.audit.readers.logs import read_logs
from kvledger.errors import AuditError
from tests.audit.readers.logs_of import CHAT, MESSAGES, read, turn, write


def test_a_broken_line_costs_itself_alone(tmp_path: Path) -> None:
    records, unread = read(write(tmp_path / "log.jsonl", CHAT, '{"a": ', MESSAGES, "[1]", '{"hello": 1}'))
    assert len(records) == 2
    assert [one.source.line for one in unread] == [2, 4, 5] or [one.source.line for one in unread] == [2, 1, 5]
    assert "hello" in unread[-1].reason


def test_a_truncated_gzip_gives_what_came_before(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(200_000).hex()
    data = gzip.compress("\n".join(json.dumps({**CHAT, "noise": noise, "n": n}) for n in range(3)).encode())
    (tmp_path / "log.gz").write_bytes(data[: len(data) * 2 // 3])
    records, unread = read(tmp_path / "log.gz")
    assert records
    assert "breaks off" in unread[-1].reason


def test_a_line_above_the_limit_is_refused_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE", 1 << 12)
    long = {**CHAT, "noise": "x" * 50_000}
    records, unread = read(write(tmp_path / "log.jsonl", MESSAGES, long, CHAT))
    assert len(records) == 2
    assert unread[0].source.line == 2


def test_garbage_empty_files_and_missing_ones(tmp_path: Path) -> None:
    (tmp_path / "garbage").write_bytes(random.Random(2).randbytes(50_000))
    (tmp_path / "nothing").touch()
    records, unread = read(tmp_path)
    assert not records
    assert [one.reason for one in unread] == ["binary data, not JSON", "the file is empty."]
    with pytest.raises(AuditError, match="There is no log"):
        read(tmp_path / "gone")


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": 10**12, "completion_tokens": 1},
        {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}},
        {"prompt_tokens": "many", "completion_tokens": 1},
        {"prompt_tokens": 1.5, "completion_tokens": 1},
        {},
    ],
)
def test_absurd_usage_is_named_and_the_body_still_read(tmp_path: Path, usage: Any) -> None:
    item = {**CHAT, "response": {**CHAT["response"], "usage": usage}}
    (record,), unread = read(write(tmp_path / "log.jsonl", item))
    assert record.usage is None
    assert record.body is not None
    assert bool(unread) == bool(usage)


def test_an_unknown_provider_is_named_with_near_ones(tmp_path: Path) -> None:
    row = {"provider": "antropic", "model": "claude-x", "usage": MESSAGES["response"]["usage"]}
    records, unread = read(write(tmp_path / "log.jsonl", row))
    assert not records
    assert "anthropic" in unread[0].reason


def test_errors_of_the_provider_are_no_requests(tmp_path: Path) -> None:
    refused = {**CHAT, "response": {"status_code": 429, "body": {"error": {"message": "slow down"}}}}
    records, unread = read(write(tmp_path / "log.jsonl", refused, CHAT))
    assert len(records) == 1
    assert "slow down" in unread[0].reason


def test_ccusage_888_of_split_lines_the_last_complete_one_counts(tmp_path: Path) -> None:
    snapshots = [turn("s", "m", 1, None), turn("s", "m", 77), turn("s", "m", 3, None)]
    (record,), unread = read(write(tmp_path / "s.jsonl", *snapshots))
    assert record.usage is not None
    assert record.usage.output == 77
    assert not unread


def test_ccusage_985_without_a_request_id(tmp_path: Path) -> None:
    records, _ = read(write(tmp_path / "s.jsonl", turn("s", "m", 5), turn("s", "m", 5)))
    assert len(records) == 1


def test_ccusage_1762_a_copy_in_another_session_file_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", turn("a", "m", 5, requestId="r"))
    write(tmp_path / "b.jsonl", turn("b", "m", 5), turn("b", "n", 6))
    records, unread = read(tmp_path)
    assert [record.id for record in records] == ["m", "n"]
    assert not unread


def test_one_id_with_other_figures_is_told_of(tmp_path: Path) -> None:
    usage = {**CHAT["response"]["usage"], "completion_tokens": 11, "total_tokens": 3011}
    again = {**CHAT, "response": {**CHAT["response"], "usage": usage}}
    records, unread = read(write(tmp_path / "log.jsonl", CHAT, again))
    assert [record.usage.output for record in records if record.usage] == [10, 11]  # the later replaces the earlier
    assert "other figures" in unread[0].reason


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("2026-11-12T09:00:00Z", 1794474000.0),
        ("2026-11-12 09:00:00", 1794474000.0),
        ("2026-11-12T10:00:00+01:00", 1794474000.0),
        (1794474000, 1794474000.0),
        ("1794474000.5", 1794474000.5),
        (1794474000123, 1794474000.123),
        (1794474000123456, 1794474000.123456),
        ("1794474000000000000", 1794474000.0),
        ("yesterday", None),
        (-5, None),
        (True, None),
        (None, None),
        (float("nan"), None),
    ],
)
def test_times(told: Any, meant: float | None) -> None:
    assert seconds(told) == meant


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from(
    [
        "request",
        "response",
        "body",
        "messages",
        "contents",
        "usage",
        "model",
        "type",
        "message",
        "payload",
        "log",
        "id",
        "input",
        "custom_id",
        "result",
        "observations",
        "resourceSpans",
        "attributes",
        "startTimeUnixNano",
        "call_type",
        "startTime",
        "traceId",
        "sessionId",
        "uuid",
        "prompt_tokens",
        "provider",
        "key",
        "params",
        "version",
        "bill",
    ]
)


@given(st.lists(st.dictionaries(_NAMES, _JSON, max_size=6), min_size=1, max_size=3))
def test_whatever_an_item_holds_it_is_read_or_told_of(items: list[dict[str, Any]]) -> None:
    import tempfile  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        found = list(read_logs([write(Path(folder) / "log.jsonl", *items)]))
    assert all(hasattr(one, "source") for one in found)
