"""A tiny Claude API: the dialect and the rulebook behind the paths that the SDK calls, and an answer that a script
gives. What the HTTP room does for real, in a few lines and without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import anthropic
import httpx2 as httpx  # what the SDK is built on

from kvledger.clock import ManualClock
from kvledger.engine.request import FinishReason
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Usage
from kvledger.providers.anthropic.diagnostics import PreviousMessages, diagnose, previous_message_id
from kvledger.providers.anthropic.messages import AnthropicMessages
from kvledger.providers.anthropic.reply import AnthropicReply
from kvledger.providers.anthropic.rules import AnthropicRules
from kvledger.providers.dialect import Answer, Asked, ToolCall
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.history import History
from tests.providers.letters import NOON, Letters


@dataclass
class Script:
    """What the model answers. `failures` are statuses to fail with first; `breaks` ends a stream in the middle."""

    pieces: tuple[str, ...] = ("Hello", ", world")
    calls: tuple[ToolCall, ...] = ()
    reason: FinishReason = FinishReason.STOP
    stop: str | None = None
    output: int = 7
    breaks: bool = False
    failures: list[int] = field(default_factory=list)


class Server:
    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.dialect, self.rules = AnthropicMessages(), AnthropicRules()
        self.entries, self.history, self.previous = MemoryEntries(), History(), PreviousMessages()
        self.script = Script()
        self.accounts: list[Account] = []
        self.requests: list[httpx.Request] = []
        self._ids = iter(range(1, 1000))

    def client(self, key: str = "secret") -> anthropic.Anthropic:
        http = anthropic.DefaultHttpxClient(transport=httpx.MockTransport(self.handle))
        return anthropic.Anthropic(api_key=key, base_url="http://claude.test", http_client=http)

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.script.failures:
            status = self.script.failures.pop(0)
            return self.error(status, "Try again.", {"retry-after-ms": "1"})
        if self.dialect.key(request.headers, request.url.params) != "secret":
            return self.error(401, "invalid x-api-key")
        try:
            if request.url.path == "/v1/messages/count_tokens":
                asked = self.dialect.parse_count(request.content)
                prompt = self.rules.prompt(asked.body, scope="s", counter=Letters())
                return httpx.Response(200, content=self.dialect.count(prompt.tokens))
            return self.answer(self.dialect.parse(request.content))
        except InvalidRequestError as error:
            return self.error(404 if error.param == "model" else 400, str(error))

    def error(self, status: int, message: str, headers: dict[str, str] | None = None) -> httpx.Response:
        content = self.dialect.error(status, message, request_id="req_9")
        return httpx.Response(status, content=content, headers={"request-id": "req_9", **(headers or {})})

    def answer(self, asked: Asked) -> httpx.Response:
        prompt = self.rules.prompt(asked.body, scope="s", counter=Letters())
        named = previous_message_id(asked.body)
        previous = self.previous.recall(named, "s") if named else None
        now = self.clock.now()
        verdict = self.rules.judge(prompt, self.entries, now, earlier=self.history.nearest(prompt))
        self.entries.put(verdict.renewed)
        self.entries.put(replace(entry, readable_at=now) for entry in verdict.written)
        self.history.add(prompt)
        self.accounts.append(verdict.account)
        reply = self.dialect.reply(asked, id=f"{next(self._ids):032x}", created=now)
        if named:
            changes = self.rules.changes(prompt, previous, now) if previous else []
            reply.diagnostics = diagnose(previous, changes)
        self.previous.remember(reply.id, prompt)
        usage = Usage(verdict.account.split, self.script.output if asked.max_tokens else 0)
        headers = {"request-id": "req_9"}
        if asked.stream:
            events = b"".join(self.events(reply, usage, verdict.account))
            return httpx.Response(200, content=events, headers={**headers, "content-type": "text/event-stream"})
        content = reply.whole([self.finished(asked)], usage, verdict.account)
        return httpx.Response(200, content=content, headers={**headers, "content-type": "application/json"})

    def finished(self, asked: Asked | None = None) -> Answer:
        script = self.script
        if asked is not None and asked.max_tokens == 0:
            return Answer("", FinishReason.LENGTH)
        return Answer("".join(script.pieces), script.reason, script.calls, stop=script.stop)

    def events(self, reply: AnthropicReply, usage: Usage, account: Account) -> Iterator[bytes]:
        yield reply.start(replace(usage, output=0))
        for piece in self.script.pieces:
            yield reply.text(0, piece, ())
            if self.script.breaks:
                yield self.dialect.error_event(529, "Overloaded")
                return
        for call in self.script.calls:
            yield reply.tool_call(0, call)
        yield reply.finish(0, self.finished())
        yield reply.end(usage, account)
