"""What the request handlers share: one model behind one engine."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from kvledger.api.auth import Keys
from kvledger.api.body import Bodies
from kvledger.api.errors import Refusal
from kvledger.api.generation import Engine, Postbox
from kvledger.clock import Clock

if TYPE_CHECKING:
    from kvledger.text.answers import Answers
    from kvledger.text.template import ChatTemplate
    from kvledger.text.tokenizer import Tokenizer


@dataclass
class Service:
    """`model_names` are the name served and its aliases, the former first. `workers` run what would hold up the event
    loop. `closing` is set when the server has begun to shut down."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    answers: Answers
    model_names: Sequence[str]
    keys: Keys
    clock: Clock
    workers: Executor
    started: int
    bodies: Bodies = field(default_factory=Bodies)
    postbox: Postbox = field(default_factory=Postbox)
    closing: bool = False

    def check_model(self, name: str) -> None:
        """Raise `Refusal` with 404 unless `name` is served here."""
        if name not in self.model_names:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                f"The model `{name}` is not served here: use `{self.model_names[0]}`.",
                param="model",
                code="model_not_found",
            )
