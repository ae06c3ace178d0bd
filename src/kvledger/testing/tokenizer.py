"""A tokenizer without a vocabulary file, for a server that needs tokens but no model."""

from __future__ import annotations

import re
import threading

from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from kvledger.text.tokenizer import Tokenizer
from kvledger.text.vocabulary import SpacePrefix, Special, Vocabulary

START, END = "<|im_start|>", "<|im_end|>"

TEMPLATE = (
    "{%- for tool in tools or [] %}{{ '<|im_start|>tool\n' }}{{ tool | tojson }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{{ message.content }}"
    "{%- for call in message.tool_calls or [] %}{{ call | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, with the tools in front as providers have them."""

_PIECE = re.compile(r" ?[^\W\d_]{1,6}|\d{1,3}|\s{1,4}|[^\w\s]{1,2}|.", re.DOTALL)
_MOST = 1 << 20


class EstimatingTokenizer(Tokenizer):
    """Cuts text into pieces of some four characters, as many as real vocabularies need for English, within a tenth.

    A piece gets the next free id when it is first seen, so ids mean something within one process only; how many there
    are depends on the text alone. Once there are `_MOST`, new pieces are written byte by byte.
    """

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._list = [bytes([byte]) for byte in range(256)] + [START.encode(), END.encode()]
        self._lock = threading.Lock()
        super().__init__(
            Vocabulary(
                backend=Backend(BPE()),  # never asked: `encode_run` is ours
                pieces=self._list,
                specials={START: Special(256), END: Special(257)},
                missing_bytes=b"",
                space_mark=False,
                space_prefix=SpacePrefix(),
                bos_id=None,
                eos_ids=frozenset((257,)),
                adds_bos=False,
                names={"eos_token": END},
                chat_template=TEMPLATE,
                fingerprint="estimate",
            )
        )
        self.vocab_size = _MOST

    def encode_run(
        self, text: str, *, after_special: bool = False, after_text: bool = False
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """See `Tokenizer.encode_run`."""
        self.check(text)
        tokens: list[int] = []
        spans: list[tuple[int, int]] = []
        for match in _PIECE.finditer(text):
            ids = self._tokens(match[0])
            tokens += ids
            spans += [match.span()] * len(ids)
        return tokens, spans

    def token_bytes(self, token: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        return self._list[token] if token < len(self._list) else b""

    def _tokens(self, piece: str) -> list[int]:
        if (id := self._ids.get(piece)) is not None:
            return [id]
        with self._lock:
            if (id := self._ids.get(piece)) is not None:
                return [id]
            if len(self._list) >= _MOST:
                return list(piece.encode())
            self._list.append(piece.encode())
            self._ids[piece] = len(self._list) - 1
            return [self._ids[piece]]
