"""A tiny Gemini: the dialect, the rulebook and the caches behind the paths that Google's SDK calls, and an answer that
a script gives. What the HTTP room will do for real, in a few lines and without a socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from google import genai
from google.genai import types

from kvledger.clock import ManualClock
from kvledger.engine.request import FinishReason
from kvledger.errors import CachedContentNotFoundError, InvalidRequestError
from kvledger.ledger.account import Account, Usage
from kvledger.providers.dialect import Answer, Asked, TokenScore, ToolCall
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.gemini.caches import CachedContents, encoded_page, parse_draft, with_cache
from kvledger.providers.gemini.generate import GeminiGenerate
from kvledger.providers.gemini.rules import GeminiRules
from kvledger.providers.history import History
from tests.providers.letters import NOON, Letters

MODEL = "gemini-2.5-flash"


@dataclass
class Script:
    """What the model answers: a text in pieces, a call, or both; `reasoning` of the output tokens are thoughts."""

    pieces: tuple[str, ...] = ("Hello", ", world")
    calls: tuple[ToolCall, ...] = ()
    reason: FinishReason = FinishReason.STOP
    reasoning: int = 0
    breaks_after: int | None = None
    failures: list[int] = field(default_factory=list)


class Server:
    def __init__(self, *, drop: float = 0.0) -> None:
        self.clock = ManualClock(NOON)
        self.rules = GeminiRules(drop=drop)
        self.caches = CachedContents(self.clock, self.rules)
        self.entries, self.history = MemoryEntries(), History()
        self.script = Script()
        self.asked: list[Asked] = []
        self.accounts: list[Account] = []
        self.requests: list[httpx.Request] = []
        self._ids = iter(range(1, 1000))

    def client(self, **options: Any) -> genai.Client:
        http = types.HttpOptions(
            base_url="http://gemini.test",
            httpx_client=httpx.Client(transport=httpx.MockTransport(self.handle)),
            **options,
        )
        return genai.Client(api_key="secret", http_options=http)

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        array = request.url.params.get("alt") != "sse" and ":stream" in request.url.path
        dialect = GeminiGenerate("array" if array else "sse")
        if self.script.failures:
            status = self.script.failures.pop(0)
            return httpx.Response(status, content=dialect.error(status, "Try again."))
        if dialect.key(request.headers, request.url.params) != "secret":
            return httpx.Response(401, content=dialect.error(401, "This needs a key.", code="api_key_invalid"))
        try:
            return self.route(request, dialect)
        except InvalidRequestError as error:
            return httpx.Response(400, content=dialect.error(400, str(error), param=error.param))
        except CachedContentNotFoundError as error:
            return httpx.Response(403, content=dialect.error(403, str(error)))

    def route(self, request: httpx.Request, dialect: GeminiGenerate) -> httpx.Response:
        path = request.url.path.split("/", 2)[2]  # the SDK says /v1, the documentation /v1beta
        verb = request.method
        if path.startswith("models/"):
            model, _, action = path.removeprefix("models/").partition(":")
            if action == "countTokens":
                tokens = sum(len(m.content) for m in dialect.parse_count(request.content, model=model).chat.messages)
                return httpx.Response(200, content=dialect.count(tokens))
            stream = action == "streamGenerateContent"
            return self.generate(dialect, dialect.parse(request.content, model=model, stream=stream))
        if path == "cachedContents" and verb == "POST":
            draft = parse_draft(request.content)
            tokens = self.rules.prompt(draft.body, scope="s", counter=Letters()).tokens
            content = self.caches.create(draft, scope="s", id=f"c{next(self._ids)}", tokens=tokens)
            return httpx.Response(200, content=content.encoded())
        if path == "cachedContents":
            query = request.url.params
            size, token = int(query.get("pageSize", 0)), query.get("pageToken", "")
            return httpx.Response(200, content=encoded_page(*self.caches.list(scope="s", size=size, token=token)))
        if verb == "PATCH":
            return httpx.Response(200, content=self.caches.update(path, request.content, scope="s").encoded())
        if verb == "DELETE":
            self.caches.delete(path, scope="s")
            return httpx.Response(200, content=b"{}")
        return httpx.Response(200, content=self.caches.get(path, scope="s").encoded())

    def generate(self, dialect: GeminiGenerate, asked: Asked) -> httpx.Response:
        if name := asked.body.get("cachedContent"):
            asked = with_cache(asked, self.caches.get(name, scope="s"))
        self.asked.append(asked)
        prompt = self.rules.prompt(asked.body, scope="s", counter=Letters(), api="generate")
        verdict = self.rules.judge(prompt, self.entries, self.clock.now(), earlier=self.history.nearest(prompt))
        self.history.add(prompt)
        self.entries.put((*verdict.renewed, *verdict.written))
        self.accounts.append(verdict.account)
        split = verdict.account.split
        output = len("".join(self.script.pieces)) * asked.choices + self.script.reasoning
        before, after = Usage(split), Usage(split, output, self.script.reasoning)
        reply = dialect.reply(asked, id="0" * 32, created=self.clock.now())
        if asked.stream:
            chunks = self.stream(dialect, asked, reply.start(before), reply, after, verdict.account)
            return httpx.Response(200, stream=Chunks(chunks), headers={"content-type": dialect.media_type})
        answers = [self.answer(asked) for _ in range(asked.choices)]
        return httpx.Response(200, content=reply.whole(answers, after, verdict.account))

    def answer(self, asked: Asked) -> Answer:
        scores = tuple(self.score(piece, asked.sampling.logprobs) for piece in self.script.pieces)
        scored = scores if asked.sampling.logprobs is not None else ()
        return Answer("".join(self.script.pieces), self.script.reason, self.script.calls, scored)

    def stream(
        self, dialect: GeminiGenerate, asked: Asked, first: bytes, reply: Any, usage: Usage, account: Account
    ) -> Iterator[bytes]:
        yield first
        for number, piece in enumerate(self.script.pieces):
            if number == self.script.breaks_after:
                yield dialect.error_event(500, "A fault ended this stream.")
                return
            wants = asked.sampling.logprobs
            for choice in range(asked.choices):
                yield reply.text(choice, piece, [] if wants is None else [self.score(piece, wants)])
        for choice in range(asked.choices):
            for call in self.script.calls:
                yield reply.tool_call(choice, call)
            yield reply.finish(choice, self.answer(asked))
        yield reply.end(usage, account)

    @staticmethod
    def score(text: str, wants: int | None) -> TokenScore:
        others = tuple(TokenScore(f"{text}{n}", -2.0 - n, ()) for n in range(wants or 0))
        return TokenScore(text, -0.5, tuple(text.encode()), others)


class Chunks(httpx.SyncByteStream):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks


def body(text: str = "hi", **fields: Any) -> bytes:
    return json.dumps({"contents": [{"parts": [{"text": text}]}], **fields}).encode()
