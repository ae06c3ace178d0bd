"""RAGPulse (flashserve/RAGPulse, data/0_trace.jsonl): requests put together from named components.

    {"timestamp": "27", "input_length": 3861, "output_length": 127, "session_id": "1758081660427-xa8rbsd2uco1",
     "hash_ids": {"sys_prompt": [8325, 8326, 11575], "passages_ids": [6123, 7239], "history": [15215],
                  "web_search": [20319], "user_input": [23648]}}

Times are seconds, in quotes. A component is up to 512 tokens; how many is in the other files of the folder
(`1_sys_prompt.jsonl` and so on). The prompt is the components in the order of the line. As given, a component is a
block; with another block size, the prompt is cut into blocks of that many tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from kvledger.errors import TraceError
from kvledger.sim.formats.reader import LineError, Names, Reader, count_of, decoded, time_of
from kvledger.sim.trace import Record

BLOCK_SIZE = 512
_LENGTHS = ("1_sys_prompt.jsonl", "2_passages.jsonl", "3_history.jsonl", "4_user_input.jsonl", "5_web_search.jsonl")


class RagPulseReader(Reader):
    name = "ragpulse"
    gaps = (0.0, 3600.0)

    def __init__(self, folder: Path, *, block_size: int | None, time_unit: float | None) -> None:
        self._cuts = block_size is not None
        super().__init__(block_size or BLOCK_SIZE, time_unit or 1.0)
        self._names = Names()
        self._sessions = Names()
        self._tokens = _component_tokens(folder)
        if self._cuts:
            self.tail = "The last block of a prompt may be partial; it can hit a prompt that ends in the same way."
        else:
            self.tail = (
                "A component is a block; one of fewer than 512 tokens is partial, takes a whole block, and can hit."
            )
        if not self._tokens:
            self.notes.append(
                f"The lengths of the components ({_LENGTHS[0]} and so on) are not beside the trace: each counts for an"
                " equal share of its request's input, so figures by token are estimates."
            )

    def records(self, line: bytes) -> Iterator[Record]:
        record = decoded(line)
        parts = record.get("hash_ids")
        if not isinstance(parts, dict) or not all(isinstance(part, list) for part in parts.values()):
            raise LineError("hash_ids is not an object of lists")
        ids = list(self._names.ids([id for part in parts.values() for id in part]))
        input_tokens = count_of(record, "input_length")
        sizes = self._sizes(ids, input_tokens)
        if self._cuts:
            ids, sizes = self._cut(ids, sizes)
        session = record.get("session_id")
        yield Record(
            ids,
            max(input_tokens, sum(sizes)),
            time_of(record, "timestamp", self.time_unit),
            session=None if session is None else self._sessions.number(session),
            sizes=sizes,
        )

    def _sizes(self, ids: list[int], input_tokens: int) -> list[int]:
        if not self._tokens:
            share, rest = divmod(input_tokens, max(len(ids), 1))
            return [share + (i < rest) for i in range(len(ids))]
        try:
            return [self._tokens[id] for id in ids]
        except KeyError as error:
            raise LineError(f"component {error} has no length in the files beside the trace") from None

    def _cut(self, ids: list[int], sizes: list[int]) -> tuple[list[int], list[int]]:
        """Blocks of `block_size` tokens: what is in each, as (component, from, to), named by a number."""
        blocks: list[int] = []
        content: list[tuple[int, int, int]] = []
        room = self.block_size
        for id, size in zip(ids, sizes, strict=True):
            at = 0
            while at < size:
                taken = min(room, size - at)
                content.append((id, at, at + taken))
                at += taken
                room -= taken
                if not room:
                    blocks.append(self._names.number(tuple(content)))
                    content, room = [], self.block_size
        filled = [self.block_size] * len(blocks)
        if content:
            blocks.append(self._names.number(tuple(content)))
            filled.append(self.block_size - room)
        return blocks, filled


def _component_tokens(folder: Path) -> dict[int, int]:
    """Tokens by component, from lines such as {"sys_prompt_id": 8302, "token_length": 512}."""
    tokens: dict[int, int] = {}
    for name in _LENGTHS:
        path = folder / name
        if path.is_file():
            for number, line in enumerate(path.read_bytes().splitlines(), 1):
                if line.strip():
                    try:
                        id, length = msgspec.json.decode(line, type=dict[str, int]).values()
                    except (ValueError, RecursionError) as error:
                        raise TraceError(f"{path} has no id and length in line {number}: {error}.") from None
                    tokens[id] = length
    return tokens
