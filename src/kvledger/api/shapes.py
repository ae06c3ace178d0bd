"""Whose SDK is calling, as far as a request shows before its body is read."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from kvledger.providers.anthropic.messages import AnthropicMessages
from kvledger.providers.dialect import Dialect
from kvledger.providers.gemini.generate import GeminiGenerate
from kvledger.providers.openai.completions import OpenAIChat

OPENAI, ANTHROPIC, GEMINI = OpenAIChat(), AnthropicMessages(), GeminiGenerate()


def shape_of(request: HTTPConnection) -> Dialect:
    """The dialect of the route, or of the headers that only one provider's SDK sends; OpenAI's if nothing shows."""
    chosen: Dialect | None = getattr(request.state, "dialect", None)
    if chosen is not None:
        return chosen
    path, headers = request.url.path, request.headers
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return ANTHROPIC
    if path.startswith("/v1beta") or "x-goog-api-key" in headers or "x-goog-api-client" in headers:
        return GEMINI
    return OPENAI
