"""Small logs of each form, in the shapes that the tools write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvledger.audit.readers.logs import read_logs
from kvledger.audit.record import Record, Unread


def write(path: Path, *items: Any) -> Path:
    """A file of JSON Lines; a text stands for a line as it is."""
    lines = [item if isinstance(item, str) else json.dumps(item) for item in items]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(*paths: Path | str) -> tuple[list[Record], list[Unread]]:
    """The records of logs, and what could not be read."""
    found = list(read_logs(paths))
    return [one for one in found if isinstance(one, Record)], [one for one in found if isinstance(one, Unread)]


CHAT = {
    "ts": "2026-02-02T09:00:00Z",
    "session_id": "s1",
    "request": {"model": "gpt-5.2", "messages": [{"role": "user", "content": "hello"}]},
    "response": {
        "id": "chatcmpl-1",
        "model": "gpt-5.2",
        "choices": [{"finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3000,
            "completion_tokens": 10,
            "total_tokens": 3010,
            "prompt_tokens_details": {"cached_tokens": 1024},
        },
    },
}

RESPONSES = {
    "ts": 1770022800,
    "request": {"model": "gpt-5.2", "input": "hello", "previous_response_id": "resp_0"},
    "response": {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}],
        "usage": {"input_tokens": 2000, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5},
    },
}

MESSAGES = {
    "timestamp": "2026-11-30T10:00:00+00:00",
    "request": {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]},
    "response": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn",
        "usage": {
            "input_tokens": 50,
            "cache_creation_input_tokens": 10000,
            "cache_read_input_tokens": 7,
            "output_tokens": 100,
        },
    },
}

GEMINI = {
    "time": 1794474000000,
    "request": {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]},
    "response": {
        "candidates": [{"content": {"parts": [{"text": "hi"}]}, "finishReason": "STOP"}],
        "modelVersion": "gemini-2.5-pro",
        "responseId": "g1",
        "usageMetadata": {
            "promptTokenCount": 12000,
            "cachedContentTokenCount": 8192,
            "candidatesTokenCount": 400,
            "thoughtsTokenCount": 900,
            "totalTokenCount": 13300,
        },
    },
}

LITELLM = {
    "id": "chatcmpl-9",
    "call_type": "acompletion",
    "custom_llm_provider": "anthropic",
    "model": "anthropic/claude-sonnet-4-5",
    "startTime": 1794474000.5,
    "endTime": 1794474003.0,
    "completionStartTime": 1794474001.0,
    "cache_hit": None,
    "status": "success",
    "metadata": {
        "user_api_key_alias": "team-a",
        "usage_object": {
            "prompt_tokens": 12307,
            "completion_tokens": 550,
            "total_tokens": 12857,
            "cache_creation_input_tokens": 12000,
            "cache_read_input_tokens": 300,
        },
    },
    "model_parameters": {
        "max_tokens": 5,
        "tools": [{"type": "function", "function": {"name": "ls", "parameters": {"type": "object"}}}],
    },
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "t", "function": {"name": "ls", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "t", "content": "a.txt"},
    ],
    "response": {"id": "chatcmpl-9", "choices": []},
}

LANGFUSE = {
    "id": "obs-1",
    "type": "GENERATION",
    "traceId": "t1",
    "startTime": "2026-11-12T09:00:00.000Z",
    "completionStartTime": "2026-11-12T09:00:01.000Z",
    "model": "claude-sonnet-4-5",
    "modelParameters": {"max_tokens": 5},
    "input": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
    "usageDetails": {"input": 50, "cache_read_input_tokens": 700, "cache_creation_input_tokens": 30, "output": 9},
}

SPAN = {
    "traceId": "aa",
    "spanId": "bb",
    "name": "chat gpt-5.2",
    "startTimeUnixNano": "1794474000000000000",
    "endTimeUnixNano": "1794474002000000000",
    "attributes": [
        {"key": "gen_ai.provider.name", "value": {"stringValue": "openai"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "gpt-5.2"}},
        {"key": "gen_ai.response.id", "value": {"stringValue": "chatcmpl-7"}},
        {"key": "gen_ai.conversation.id", "value": {"stringValue": "c7"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "4000"}},
        {"key": "gen_ai.usage.cache_read.input_tokens", "value": {"intValue": "1024"}},
        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "12"}},
        {
            "key": "gen_ai.input.messages",
            "value": {"stringValue": '[{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]'},
        },
        {
            "key": "gen_ai.system_instructions",
            "value": {"stringValue": '[{"type": "text", "content": "be brief"}]'},
        },
    ],
}

OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN, {"traceId": "aa", "name": "GET /", "attributes": []}]}]}]}

STREAM = """event: message_start
data: {"type":"message_start","message":{"id":"msg_7","type":"message","model":"claude-sonnet-4-5","stop_reason":null,\
"usage":{"input_tokens":4,"cache_read_input_tokens":900,"cache_creation_input_tokens":0,"output_tokens":1}}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":41}}

event: message_stop
data: {"type":"message_stop"}
"""

HAR = {
    "log": {
        "version": "1.2",
        "entries": [
            {"startedDateTime": "2026-11-12T09:00:00Z", "request": {"method": "GET", "url": "https://example.org/"}},
            {
                "startedDateTime": "2026-11-12T09:00:00Z",
                "request": {
                    "method": "POST",
                    "url": "https://api.anthropic.com/v1/messages",
                    "postData": {"mimeType": "application/json", "text": json.dumps(MESSAGES["request"])},
                },
                "response": {"status": 200, "content": {"mimeType": "text/event-stream", "text": STREAM}},
                "timings": {"send": 10, "wait": 490, "receive": 1000},
            },
        ],
    }
}


def turn(session: str, identity: str, output: int, stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    """A line of Claude Code's for one block of an answer."""
    usage = {
        "input_tokens": 4,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 50,
        "output_tokens": output,
    }
    message = {
        "id": identity,
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [],
        "stop_reason": stop,
        "usage": usage,
    }
    line = {"type": "assistant", "uuid": f"{identity}-{output}", "sessionId": session, "message": message}
    return {**line, "timestamp": "2026-11-30T10:00:05.000Z", **more}
