"""A server without a socket behind OpenAI's own client: both dialects, the real rulebook, a scripted answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import httpx
import openai

from kvledger.engine.request import FinishReason
from kvledger.errors import InvalidRequestError
from kvledger.ledger.account import Account, Split, Usage
from kvledger.providers.dialect import Answer, Asked, TokenScore, ToolCall
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.history import History
from kvledger.providers.openai.completions import OpenAIChat
from kvledger.providers.openai.conversations import Conversations
from kvledger.providers.openai.responses import OpenAIResponses
from kvledger.providers.openai.rules import OpenAIRules
from kvledger.text.tool_calls import ToolCallReader
from tests.providers.letters import Letters
from tests.providers.openai.world import NOVEMBER


@dataclass
class Server:
    """Answers each request with `text`, three letters at a time; its tool calls are read out of it.

    `breaks_after` ends a stream with an error after so many pieces.
    """

    text: str = "Hello."
    reason: FinishReason = FinishReason.STOP
    breaks_after: int | None = None
    status: int = 200
    at: float = NOVEMBER
    conversations: Conversations = field(default_factory=Conversations)
    asked: list[Asked] = field(default_factory=list)
    accounts: list[Account | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rules, self.entries, self.history = OpenAIRules(), MemoryEntries(), History()

    def sdk(self, tenant: str = "k", **options) -> openai.OpenAI:
        transport = httpx.MockTransport(self.handle)
        settings = {"max_retries": 0, "base_url": "http://server/v1", "api_key": tenant, **options}
        return openai.OpenAI(http_client=httpx.Client(transport=transport), **settings)

    def handle(self, request: httpx.Request) -> httpx.Response:
        chat = OpenAIChat()
        tenant = chat.key(request.headers, dict(request.url.params)) or ""
        is_chat = request.url.path.endswith("/chat/completions")
        dialect = chat if is_chat else OpenAIResponses(self.conversations.of(tenant))
        if self.status != 200:
            return httpx.Response(self.status, content=dialect.error(self.status, "Not now.", code="a_code"))
        try:
            asked = dialect.parse(request.content)
            account = self.judge(asked, dialect, tenant)
        except InvalidRequestError as error:
            return httpx.Response(400, content=dialect.error(400, str(error), param=error.param))
        self.asked.append(asked)
        self.accounts.append(account)
        pieces = list(self.pieces(asked))
        calls = tuple(piece for piece in pieces if isinstance(piece, ToolCall))
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        scores = (
            [] if asked.sampling.logprobs is None else [TokenScore("H", -0.5, (72,), (TokenScore("h", -1, (104,)),))]
        )
        answer = Answer(text, self.reason, calls, tuple(scores))
        before = Usage(account.split if account else Split(10, fresh=10))
        after = replace(before, output=asked.choices * (0 if asked.max_tokens == 0 else 7), reasoning=0)
        reply = dialect.reply(asked, id=f"{len(self.asked):032x}", created=self.at)
        if not asked.stream:
            return httpx.Response(200, content=reply.whole([answer] * asked.choices, after, account))
        events = [reply.start(before)]
        for choice in range(asked.choices):
            for piece in pieces:
                if isinstance(piece, str):
                    events.append(reply.text(choice, piece, scores))
                    scores = []
                else:
                    events.append(reply.tool_call(choice, piece))
            events.append(reply.finish(choice, answer))
        events.append(reply.end(after, account))
        if self.breaks_after is not None:
            fail = getattr(reply, "fail", None)
            events[self.breaks_after :] = [fail("It broke.") if fail else dialect.error_event(500, "It broke.")]
        return httpx.Response(200, content=b"".join(events), headers={"content-type": "text/event-stream"})

    def judge(self, asked: Asked, dialect: OpenAIChat | OpenAIResponses, tenant: str) -> Account | None:
        """As a server does: the account of a model that the rules know, against the compared or the nearest prompt."""
        if asked.model.startswith("local"):
            return None
        self.at += 60

        def read(body):
            return self.rules.prompt(body, scope=tenant, counter=Letters(), api=dialect.api)

        prompt = read(asked.body)
        compared = dialect.comparison(asked) if isinstance(dialect, OpenAIResponses) else None
        earlier = read(compared) if compared else self.history.nearest(prompt)
        verdict = self.rules.judge(prompt, self.entries, self.at, earlier=earlier)
        self.history.add(prompt)
        self.entries.put((*verdict.renewed, *verdict.written))
        return verdict.account

    def pieces(self, asked: Asked) -> Iterator[str | ToolCall]:
        if asked.max_tokens == 0:
            return
        reader = ToolCallReader([tool["function"]["name"] for tool in asked.chat.tools])
        parts: Sequence[str] = [self.text[at : at + 3] for at in range(0, len(self.text), 3)]
        number = 0
        for found in [piece for part in parts for piece in reader.push(part)] + reader.finish():
            if isinstance(found, str):
                yield found
            else:
                number += 1
                yield ToolCall(f"call_{number}", found.name, found.arguments)
