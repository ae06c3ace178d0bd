"""From a chat to a prompt: the model's own chat template, and where each token of it came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import jinja2

from kvledger.clock import Clock, SystemClock
from kvledger.errors import InvalidRequestError, TemplateError
from kvledger.text.answers import Answers
from kvledger.text.chat import Chat
from kvledger.text.prompt import Prompt
from kvledger.text.prompt_builder import build_prompt
from kvledger.text.sandbox import RefusedError, TemplateEnvironment
from kvledger.text.tokenizer import Tokenizer
from kvledger.text.traced import TEMPLATE, Traced, concat, trace
from kvledger.text.work import WorkExceededError, bounded

_MAX_SOURCE = 1_000_000  # characters
_MAX_SECONDS = 10.0
_BASE_WORK, _WORK_PER_MESSAGE = 300_000, 300  # units of `work.spend`; real templates take some twenty per message
_ROLE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


class ChatTemplate:
    """A chat template ready to render. Safe to use from several threads.

    Text that the template writes may hold special tokens; text of messages and tools never does, whatever the template
    does with it. `clock` is what the template's `strftime_now` reads, in UTC. A prompt of more than `limit` tokens is
    refused without being tokenised to its end.
    """

    def __init__(
        self, source: str | None, tokenizer: Tokenizer, *, clock: Clock | None = None, limit: int | None = None
    ) -> None:
        """Compile `source`; raises `TemplateError` if it is missing or is not a valid template."""
        if source is None:
            raise TemplateError("This model carries no chat template: use a model that was made for chat.")
        if len(source) > _MAX_SOURCE:
            raise TemplateError(f"The model's chat template has {len(source)} characters; {_MAX_SOURCE} is the most.")
        self._tokenizer = tokenizer
        self._limit = limit
        self._clock = clock or SystemClock()
        try:
            self._template = TemplateEnvironment(self._strftime).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            where = f"line {error.lineno}: {_sentence(error)}"
            raise TemplateError(f"The model's chat template is broken in {where}") from error
        except (RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
            raise TemplateError(f"The model's chat template cannot be compiled: {_sentence(error)}") from error

    def render(
        self, chat: Chat, *, generation_prompt: bool = True, answers: Answers | None = None, tenant: str = ""
    ) -> Prompt:
        """Render `chat` and turn it into tokens, each with the part of the request that it came from.

        With `generation_prompt` the prompt ends where the assistant's next answer begins. Assistant messages that
        `answers` remembers for `tenant` become the very tokens that were sampled. Raises `TemplateError` if the
        template refuses these messages, `InvalidRequestError` for text that cannot be encoded or is too long.
        """
        text = self._text(chat, generation_prompt)
        if answers is None:
            return build_prompt(text, self._tokenizer, limit=self._limit)
        said = {f"{message.path}.content": message.content for message in chat.messages if message.role == "assistant"}

        def recall(path: str, before: Sequence[int]) -> tuple[int, ...] | None:
            return answers.recall(tenant, before, said[path]) if path in said else None

        return build_prompt(text, self._tokenizer, recall, self._limit)

    def _text(self, chat: Chat, generation_prompt: bool) -> Traced:
        size = 0

        def traced(value: Any, path: str) -> Any:
            def check(text: str) -> None:
                nonlocal size
                size += len(text)
                self._tokenizer.check(text, path)

            return trace(value, path, check)

        messages = []
        for message in chat.messages:
            if not _ROLE.fullmatch(message.role):
                path = f"{message.path}.role"
                raise InvalidRequestError(
                    f"`{path}` is not the name of a role: use user, assistant or system.", param=path
                )
            fields = {key: traced(value, f"{message.path}.{key}") for key, value in message.fields.items()}
            content = traced(message.content, f"{message.path}.content")
            messages.append({**fields, "role": Traced(message.role, TEMPLATE), "content": content})
        tools = [traced(tool, f"tools[{i}]") for i, tool in enumerate(chat.tools)]
        names = {name: Traced(text, TEMPLATE) for name, text in self._tokenizer.names.items()}
        values = {**names, "messages": messages, "tools": tools or None, "add_generation_prompt": generation_prompt}
        try:
            with bounded(_BASE_WORK + _WORK_PER_MESSAGE * len(messages) + size, self._clock, _MAX_SECONDS):
                return concat(self._template.generate(values))
        except RefusedError as error:
            raise TemplateError(f"The model's chat template refuses these messages: {_sentence(error)}") from error
        except WorkExceededError as error:
            raise TemplateError(f"The model's chat template was stopped: {_sentence(error)}") from error
        except Exception as error:  # a template is a program that is not ours: it may fail in any way
            raise TemplateError(f"The model's chat template fails on these messages: {_sentence(error)}") from error

    def _strftime(self, format: str) -> Traced:
        text = datetime.fromtimestamp(self._clock.now(), UTC).strftime(format)
        return Traced(text, format.origin if isinstance(format, Traced) else None)


def _sentence(error: BaseException) -> str:
    text = error.message if isinstance(error, jinja2.TemplateError) else str(error)
    return f"{text or type(error).__name__}".rstrip(".") + "."
