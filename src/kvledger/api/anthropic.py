"""Anthropic's routes: Messages, and counting their tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from kvledger.api.books import Page
from kvledger.api.exchange import Manner, admit, answer, in_worker, named_in, render
from kvledger.api.service import Service
from kvledger.api.shapes import ANTHROPIC
from kvledger.providers.anthropic.diagnostics import diagnose, previous_message_id
from kvledger.providers.anthropic.reply import AnthropicReply
from kvledger.providers.anthropic.rules import AnthropicRules
from kvledger.providers.dialect import Asked, Reply
from kvledger.providers.prompt import ProviderPrompt
from kvledger.providers.rulebook import Rulebook


async def create_message(request: Request) -> Response:
    return await answer(request, MessagesManner(request.app.state.service))


async def count_message_tokens(request: Request) -> Response:
    """The tokens that a request would have as `usage`, rendered by the template of the model that answers."""
    service: Service = request.app.state.service
    caller = admit(request, ANTHROPIC)

    def count(raw: bytes) -> int:
        _, asked = named_in(service, ANTHROPIC.parse_count(raw), ANTHROPIC.api)
        return len(render(service, asked, caller).tokens)

    async with service.bodies.read(request) as raw:
        tokens = await in_worker(service, count, raw)
    return Response(ANTHROPIC.count(tokens), media_type="application/json")


class MessagesManner(Manner):
    """The Messages API: what became of the prompts of earlier messages."""

    def __init__(self, service: Service) -> None:
        super().__init__(ANTHROPIC)
        self._previous = service.previous_messages

    def earlier(self, asked: Asked, rules: Rulebook, tenant: str) -> ProviderPrompt | None:
        id = previous_message_id(asked.body)
        return self._previous.recall(id, tenant) if id else None

    def opened(self, reply: Reply, page: Page, earlier: ProviderPrompt | None) -> None:
        assert isinstance(reply, AnthropicReply)
        rules = page.named.rules
        if page.judged is None or not isinstance(rules, AnthropicRules):
            return
        if previous_message_id(page.asked.body):
            reply.diagnostics = diagnose(earlier, rules.changes(earlier, page.judged, page.at) if earlier else ())
        self._previous.remember(reply.id, page.judged)
