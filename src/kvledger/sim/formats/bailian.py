"""Bailian traces (alibaba-edu/qwen-bailian-usagetraces-anon): one request a line, with its conversation.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, 1091, 6326, ..., 13148]}

Times are seconds. A hash id names the content of a block of 16 tokens; a block is only equal to another if everything
before it is. A request whose parent is -1 opens a conversation.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvledger.sim.formats.mooncake import PARTIAL_TAIL
from kvledger.sim.formats.reader import Names, Reader, count_of, decoded, list_of, time_of
from kvledger.sim.trace import Record

BLOCK_SIZE = 16


class BailianReader(Reader):
    name = "bailian"
    tail = PARTIAL_TAIL
    gaps = (0.0, 20.0)

    def __init__(self, *, block_size: int | None, time_unit: float | None) -> None:
        super().__init__(block_size or BLOCK_SIZE, time_unit or 1.0)
        self._names = Names()
        self._conversations: dict[int, int] = {}

    def records(self, line: bytes) -> Iterator[Record]:
        record = decoded(line)
        chat = count_of(record, "chat_id")
        ids = self._names.ids(list_of(record, "hash_ids"))
        tokens = count_of(record, "input_length")
        time = time_of(record, "timestamp", self.time_unit)
        parent = record.get("parent_chat_id")
        conversation = self._conversations.get(parent, chat) if isinstance(parent, int) else chat
        self._conversations[chat] = conversation
        yield Record(ids, tokens, time, session=conversation)
