"""What the request handlers share: one model behind one engine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvledger.api.auth import Keys
from kvledger.api.body import Bodies
from kvledger.api.books import Books
from kvledger.api.generation import Engine, Postbox
from kvledger.api.metrics import Metrics
from kvledger.api.names import Names
from kvledger.api.responses import Responses
from kvledger.clock import Clock
from kvledger.providers.anthropic.diagnostics import PreviousMessages
from kvledger.providers.openai.conversations import Conversations

if TYPE_CHECKING:
    from kvledger.text.answers import Answers
    from kvledger.text.template import ChatTemplate
    from kvledger.text.tokenizer import Tokenizer


@dataclass
class Service:
    """`model_names` are the name served and its aliases, the former first; `persona` is what `Names` takes. `workers`
    run what would hold up the event loop. `closing` is set when the server has begun to shut down."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    answers: Answers
    model_names: Sequence[str]
    keys: Keys
    clock: Clock
    workers: Executor
    started: int
    persona: str | None = None
    books: Books = None  # type: ignore[assignment]  # made from the rest unless given
    bodies: Bodies = field(default_factory=Bodies)
    postbox: Postbox = field(default_factory=Postbox)
    closing: bool = False
    metrics: Metrics = field(init=False)
    names: Names = field(init=False)
    conversations: Conversations = field(default_factory=Conversations)
    responses: Responses = field(default_factory=Responses)
    previous_messages: PreviousMessages = field(default_factory=PreviousMessages)

    def __post_init__(self) -> None:
        self.metrics = Metrics(self.model_names[0])
        self.names = Names(self.model_names, self.persona)
        self.books = self.books or Books(self.clock, self.model_names[0])

    def count(self, text: str) -> int:
        """The tokens of a text on its own, by the model's tokenizer."""
        return len(self.tokenizer.encode(text))

    def forget(self) -> None:
        """Forget what providers' caches and stores would hold."""
        self.books.forget()
        self.conversations, self.responses = Conversations(), Responses()
        self.previous_messages = PreviousMessages()
