"""A conversation turn by turn: what the prompt cache reads, writes and leaves to compute."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvledger.cache import Lease, MissReason, Namespace, PromptCache
from kvledger.clock import ManualClock
from kvledger.errors import ExplainError
from kvledger.text.answers import Answers
from kvledger.text.chat import Chat, Message
from kvledger.text.template import ChatTemplate
from kvledger.text.tokenizer import Tokenizer

_BRANCHES = "\n".join(
    f"Branch {i}: open from {8 + i % 3} to {17 + i % 4}, closed on Sundays, telephone extension {1000 + 7 * i}."
    for i in range(1, 71)
)

EXAMPLE: tuple[Mapping[str, str], ...] = (
    {
        "role": "system",
        "content": f"You are the assistant of a public library. Answer in one or two sentences.\n{_BRANCHES}",
    },
    {"role": "user", "content": "When does branch 12 open?"},
    {"role": "assistant", "content": "Branch 12 opens at eight in the morning, every day but Sunday."},
    {"role": "user", "content": "And how long may I keep a book?"},
    {"role": "assistant", "content": "Four weeks, and you can renew it twice if nobody else has asked for it."},
    {"role": "user", "content": "Can I renew it by telephone?"},
    {"role": "assistant", "content": "Yes, or on the web page, up to the day on which it is due."},
)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation and its answer. Counts are of tokens: `prompt` = `reused` (read) + `fresh`.

    `written` is what the cache has newly of this turn, fresh tokens and answer. `at` is in seconds from the first turn.
    `reason` and `path` say what stood at the first token that was not reused, and where in the request it came from.
    """

    messages: Sequence[Mapping[str, Any]]
    at: float
    prompt: int
    reused: int
    answer: int
    written: int
    reason: MissReason | None
    path: str | None

    @property
    def fresh(self) -> int:
        """Computed before the first token of the answer."""
        return self.prompt - self.reused


def replay(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    *,
    clock: ManualClock,
    gap: float,
    ttl: float | None,
) -> list[Turn]:
    """Send a conversation request by request through a prompt cache, `gap` seconds apart.

    Answers are those of the conversation, and their tokens are remembered as the server remembers what it sampled.
    `ttl` is how long an unused block stays, in seconds.
    """
    if not gap >= 0 or gap == float("inf"):
        raise ExplainError(f"--gap is {gap}: a number of seconds, zero or more, is needed.")
    if ttl is not None and not ttl > 0:
        raise ExplainError(f"--ttl is {ttl}: a number of seconds above zero is needed.")
    answers = Answers()
    turns: list[Turn] = []
    namespace = Namespace(weights="", tokenizer=tokenizer.fingerprint, adapter="", layout="", tenant="")
    everything = template.render(Chat(tuple(_message(each, i) for i, each in enumerate(messages)))).tokens
    cache = PromptCache(16 + len(everything), bytes_per_block=1, clock=clock, ttl=ttl)  # room for 16 of it
    began = clock.now()
    for end in _requests(messages):
        if turns:
            clock.advance(gap)
        chat = Chat(tuple(_message(each, i) for i, each in enumerate(messages[:end])))
        prompt = template.render(chat, answers=answers)
        lease = cache.acquire(namespace, prompt.tokens, segments=prompt.segments)
        assert isinstance(lease, Lease), "the cache has room for the whole conversation"
        answer: list[int] = []
        if end < len(messages):
            content = str(messages[end]["content"])
            answer = tokenizer.encode(content)
            answers.remember("", prompt.tokens, content, answer)
        sequence = (*prompt.tokens, *answer)
        miss, reused = lease.miss, lease.reused
        extended = cache.extend(lease, len(sequence))
        assert extended, "the cache has room for the whole conversation"
        cache.commit(lease, sequence, len(sequence))
        cache.release(lease)
        turns.append(
            Turn(
                tuple(messages[:end]),
                clock.now() - began,
                len(prompt.tokens),
                reused,
                len(answer),
                len(sequence) - reused,
                miss.reason if miss else None,
                miss.path if miss else None,
            )
        )
    return turns


def read_conversation(text: str, source: str) -> list[Mapping[str, Any]]:
    """A conversation in the shape of the chat APIs: a list of messages, or an object with `messages`.

    Raises `ExplainError` saying what is wrong and where.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ExplainError(f"{source} is not JSON: a list of messages with role and content is needed.") from error
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list) or not value:
        raise ExplainError(f"{source} has no messages: a list of them, with role and content, is needed.")
    for i, message in enumerate(value):
        if not isinstance(message, dict):
            raise ExplainError(f"{source}: messages[{i}] is not an object with role and content.")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise ExplainError(f"{source}: messages[{i}].{key} is not a text.")
    if not _requests(value):
        raise ExplainError(f"{source} asks nothing: a message of the user is needed.")
    return value


def _requests(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """How many messages each request has: all before an answer, and all if the last one is no answer."""
    ends = [i for i, message in enumerate(messages) if i > 0 and message["role"] == "assistant"]
    if messages[-1]["role"] != "assistant":
        ends.append(len(messages))
    return ends


def _message(message: Mapping[str, Any], index: int) -> Message:
    return Message(str(message["role"]), str(message["content"]), f"messages[{index}]")
