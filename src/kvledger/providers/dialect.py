"""What a wire format has to do: turn a body into a neutral question, and the engine's answer back into its own words.

`api` runs every dialect through these few calls, so that the path of a request is the same whoever's SDK sent it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvledger.engine.request import FinishReason, Sampling
from kvledger.ledger.account import Account, Usage
from kvledger.text.chat import Chat


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A checked request with every default filled in. `max_tokens` None means up to the context's end, 0 asks for no
    output at all (a pre-warm). `ignored` names fields of the body that have no effect. `body` is the decoded body, for
    the rulebook to read."""

    model: str
    chat: Chat
    body: Mapping[str, Any]
    sampling: Sampling = field(default_factory=Sampling)
    choices: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    ignore_eos: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A sampled token as a client sees it: text, natural-log probability, exact bytes, and the same of alternatives."""

    text: str
    logprob: float
    bytes: tuple[int, ...]
    alternatives: tuple[TokenScore, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the model wrote. `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished choice. `stop` is the string of `Asked.stop` that ended it, None where the model did."""

    text: str
    reason: FinishReason
    tool_calls: tuple[ToolCall, ...] = ()
    scores: tuple[TokenScore, ...] = ()
    stop: str | None = None


class Reply(Protocol):
    """Writes one answer. The streaming calls return encoded events (possibly none) and come in the order start, then
    text and tool calls of any choice, finish of each choice, end. A reply that is not streamed uses `whole` alone.

    `usage` before the output exists has `output == 0`; its split is already final.
    """

    id: str

    def start(self, usage: Usage) -> bytes: ...

    def text(self, choice: int, text: str, scores: Sequence[TokenScore]) -> bytes: ...

    def tool_call(self, choice: int, call: ToolCall) -> bytes: ...

    def finish(self, choice: int, answer: Answer) -> bytes: ...

    def end(self, usage: Usage, account: Account | None) -> bytes: ...

    def whole(self, answers: Sequence[Answer], usage: Usage, account: Account | None) -> bytes: ...


class Dialect(Protocol):
    """One wire format of one provider. `account` above is None for a model that no provider's rules apply to."""

    provider: str
    api: str
    """The name by which the rulebook knows the format: "chat", "responses", "messages", "generate"."""

    def parse(self, raw: bytes, *, model: str = "", stream: bool = False) -> Asked:
        """Check a body; `InvalidRequestError` names the first field that cannot be served. `model` and `stream` are
        given where the route carries them (Gemini)."""
        ...

    def reply(self, asked: Asked, *, id: str, created: float) -> Reply:
        """`id` is 32 hexadecimal digits, to which the dialect puts its own prefix; `created` is Unix time."""
        ...

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        """The API key where this provider's SDK puts it, None if there is none."""
        ...

    def error(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> bytes:
        """The body of an error with HTTP status `status`, in this provider's shape."""
        ...

    def error_event(self, status: int, message: str) -> bytes:
        """The event that ends a stream which breaks in the middle."""
        ...
