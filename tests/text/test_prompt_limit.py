"""A prompt that is too long is refused after work in proportion to the limit, not to its length."""

from __future__ import annotations

import pytest

from kvledger.errors import PromptTooLongError
from kvledger.text.chat import Chat, Message
from kvledger.text.template import ChatTemplate
from tests.text.vocabularies import CHATML, byte_level

LIMIT = 100


class Counting:
    """A tokenizer that counts the characters it was given."""

    def __init__(self) -> None:
        self._tokenizer = byte_level()
        self.characters = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._tokenizer, name)

    def encode_run(self, text: str, **where: bool) -> tuple[list[int], list[tuple[int, int]]]:
        self.characters += len(text)
        return self._tokenizer.encode_run(text, **where)


def chat(*contents: str) -> Chat:
    return Chat(tuple(Message("user", content, f"messages[{i}]") for i, content in enumerate(contents)))


@pytest.mark.parametrize("contents", [("1" * 1_000_000,), ("x",) * 10_000], ids=["one long text", "many messages"])
def test_work_ends_soon_after_the_limit(contents: tuple[str, ...]) -> None:
    tokenizer = Counting()
    with pytest.raises(PromptTooLongError, match="at least") as caught:
        ChatTemplate(CHATML, tokenizer, limit=LIMIT).render(chat(*contents))  # type: ignore[arg-type]
    assert caught.value.available == LIMIT
    assert caught.value.needed > LIMIT
    assert tokenizer.characters < 20_000


def test_the_limit_itself_fits() -> None:
    prompt = ChatTemplate(CHATML, byte_level()).render(chat("hello world " * 20))
    assert ChatTemplate(CHATML, byte_level(), limit=len(prompt.tokens)).render(chat("hello world " * 20)) == prompt
    with pytest.raises(PromptTooLongError):
        ChatTemplate(CHATML, byte_level(), limit=len(prompt.tokens) - 1).render(chat("hello world " * 20))


def test_a_long_text_of_few_tokens_is_not_refused() -> None:
    text = "hello world " * 400
    prompt = ChatTemplate(CHATML, byte_level()).render(chat(text))
    limit = len(text) // 8 - 1
    if len(prompt.tokens) <= limit:
        assert ChatTemplate(CHATML, byte_level(), limit=limit).render(chat(text)) == prompt
    else:
        with pytest.raises(PromptTooLongError):
            ChatTemplate(CHATML, byte_level(), limit=limit).render(chat(text))
