"""What is asked of the engine, and what it answers with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from kvledger.cache.miss import Miss
from kvledger.errors import InvalidRequestError
from kvledger.text.prompt import Prompt


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults are those of the OpenAI API; `temperature == 0` is greedy.

    `top_k == 0` keeps every token. `logprobs` is the number of alternatives to report per token, 0 for the chosen
    token alone, None for no log probabilities. `seed` None draws one from the operating system. A value out of range
    raises `InvalidRequestError`, which names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        finite = math.isfinite
        demand("temperature", self.temperature, finite(self.temperature) and self.temperature >= 0, "0 or more")
        demand("top_k", self.top_k, self.top_k >= 0, "0 or more (0 keeps every token)")
        demand("top_p", self.top_p, 0 <= self.top_p <= 1, "from 0 to 1")
        demand("min_p", self.min_p, 0 <= self.min_p <= 1, "from 0 to 1")
        demand("repetition_penalty", self.repetition_penalty, 0 < self.repetition_penalty < math.inf, "above 0")
        demand("presence_penalty", self.presence_penalty, finite(self.presence_penalty), "a finite number")
        demand("frequency_penalty", self.frequency_penalty, finite(self.frequency_penalty), "a finite number")
        demand("logprobs", self.logprobs, self.logprobs is None or self.logprobs >= 0, "0 or more")
        for _, bias in self.logit_bias:
            demand("logit_bias", bias, finite(bias), "finite numbers")


def demand(field_name: str, value: object, holds: bool, wanted: str) -> None:
    """Raise `InvalidRequestError`, which names the field and says what is `wanted`, unless it `holds`."""
    if not holds:
        raise InvalidRequestError(f"{field_name} is {value}, which cannot be served: use {wanted}.", param=field_name)


@dataclass(frozen=True)
class Request:
    """One sequence to generate. `max_tokens` None means as many as the context allows.

    `tenant` comes from the authenticated key, never from a request body; `cache` False neither reads nor writes the
    prompt cache. `stop` strings end the output and are not part of it. `ignore_eos` makes the tokens that end a turn
    ordinary ones.
    """

    id: str
    prompt: Prompt
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    tenant: str = ""
    cache: bool = True

    def __post_init__(self) -> None:
        if not self.prompt.tokens:
            raise InvalidRequestError("The prompt holds no tokens: send at least one.", param="messages")
        demand("max_tokens", self.max_tokens, self.max_tokens is None or self.max_tokens >= 1, "1 or more")
        demand("stop", "an empty string", all(self.stop), "strings of one character or more")


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    """The model ended its turn, or a stop string appeared."""
    LENGTH = "length"
    """`max_tokens` or the model's context was reached."""
    CAPACITY = "capacity"
    """The KV pool cannot hold one more token of this sequence, even alone."""
    CANCELLED = "cancelled"
    """The caller went away."""
    ERROR = "error"
    """The server stopped, or a fault ended the step; `Finished.message` says which."""


@dataclass(frozen=True)
class TokenLogprob:
    """A token with its natural-log probability under the model's own distribution (before temperature and filters)."""

    token: int
    logprob: float


@dataclass(frozen=True)
class Generated:
    """One sampled token. `text` is what can be shown so far without cutting a character or a stop string in half;
    it may be empty, and it may hold the text of earlier tokens that had to wait. `reused_tokens` is that of `Usage`, on
    the first token of a sequence alone: what an answer says of its prompt may have to be said before its text."""

    token: int
    text: str
    logprob: TokenLogprob | None = None
    alternatives: tuple[TokenLogprob, ...] = ()
    reused_tokens: int | None = None


@dataclass(frozen=True)
class Usage:
    """What one request took. Token counts; times in seconds on the engine's monotonic clock.

    `reused_tokens` is that of the first admission, whatever preemption did later, so it never exceeds
    `prompt_tokens - 1`. `queued` runs from submission to admission, `prefill` from admission to the first token,
    `decode` from there to the last. `miss` says why the tokens from
    `reused_tokens` on were not reused (None: all but the last were, or the request was never admitted).
    """

    prompt_tokens: int
    reused_tokens: int
    output_tokens: int
    queued: float
    prefill: float
    decode: float
    miss: Miss | None = None


@dataclass(frozen=True)
class Finished:
    """The last event of every request. `text` is the rest of the output that `Generated` had held back, `stop` the stop
    string that ended it, None where none did."""

    reason: FinishReason
    usage: Usage
    text: str = ""
    message: str = ""
    stop: str | None = None


Event = Generated | Finished
