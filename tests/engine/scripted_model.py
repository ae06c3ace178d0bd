"""A model whose logits are a pure function of the tokens it has seen, as recovered from the pool.

Like keys and values in a transformer, what is stored for a position depends on its token and on everything stored for
the positions before it, read through the block table. A wrong table, a missing copy or a prefix that was never written
therefore changes the output.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kvledger.cache import Namespace, PromptCache
from kvledger.cache.disk import DiskTier
from kvledger.cache.retention import BOOKKEEPING_BYTES
from kvledger.cache.tiers import LowerTier
from kvledger.clock import ManualClock
from kvledger.engine.engine import Engine
from kvledger.engine.output import OutputText
from kvledger.engine.request import Event, Finished, FinishReason, Generated, Request
from kvledger.engine.sampler import Sampler
from kvledger.model.batch import Run
from kvledger.model.config import ModelConfig

NEVER_WRITTEN = 2**32 - 1

CAT = "猫".encode()
PIECES = [b"a", b"b", b"c", b"ab", b" ", CAT[:1], CAT[1:], b"bc", b"cab", b"d", b"e", b"."]
EOS = len(PIECES)
VOCAB_SIZE = len(PIECES) + 1


class PieceTokenizer:
    """A tokenizer of a dozen pieces, two of which are parts of one character, and an end-of-turn token."""

    vocab_size = VOCAB_SIZE
    bos_id = None
    eos_ids = frozenset({EOS})
    special_ids = frozenset({EOS})
    fingerprint = "pieces"

    def token_bytes(self, token: int) -> bytes:
        return PIECES[token] if token < EOS else b"<eos>"


def config(context_length: int = 4096) -> ModelConfig:
    return ModelConfig(
        architecture="scripted",
        vocab_size=VOCAB_SIZE,
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        ffn_size=8,
        norm_eps=1e-5,
        rope_theta=10000.0,
        context_length=context_length,
    )


def stored(before: np.ndarray, token: int) -> int:
    return zlib.crc32(int(token).to_bytes(4, "little"), zlib.crc32(before.tobytes()))


def logits(seen: np.ndarray) -> np.ndarray:
    """Normal variates, with a modest chance of the end-of-turn token being likely."""
    generator = np.random.Generator(np.random.Philox(key=zlib.crc32(seen.tobytes())))
    return (generator.standard_normal(VOCAB_SIZE) * 2).astype(np.float32)


class SlotPool:
    """One number per position in place of keys and values."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.bytes_per_block = 4 * block_size
        self.slots = np.full((num_blocks, block_size), NEVER_WRITTEN, dtype=np.uint32)

    def copy_block(self, src: int, dst: int) -> None:
        self.slots[dst] = self.slots[src]

    def read_block(self, block: int) -> bytes:
        return self.slots[block].tobytes()

    def write_block(self, block: int, content: bytes) -> None:
        self.slots[block] = np.frombuffer(content, np.uint32)


class ScriptedModel:
    """`before_forward` is called with the runs of each step: to look, or to raise."""

    def __init__(self, context_length: int = 4096) -> None:
        self.config = config(context_length)
        self.before_forward: Callable[[list[Run]], None] = lambda runs: None
        self.num_computed = 0

    def forward(self, runs: list[Run], pool: SlotPool) -> np.ndarray:
        self.before_forward(runs)
        assert runs, "an empty step"
        self._check_no_shared_writes(runs, pool.block_size)
        rows = []
        for run in runs:
            self.num_computed += run.tokens.size
            view = pool.slots[run.table]  # a copy, in the order of the sequence
            flat = view.reshape(-1)
            for position, token in enumerate(run.tokens, start=run.start):
                assert NEVER_WRITTEN not in flat[:position], "read a position that was never written"
                flat[position] = stored(flat[:position], token)
            first = run.start // pool.block_size
            last = (run.start + run.tokens.size - 1) // pool.block_size
            pool.slots[run.table[first : last + 1]] = view[first : last + 1]
            end = run.start + run.tokens.size
            rows += [logits(flat[: end - back]) for back in range(run.num_logits - 1, -1, -1)]
        return np.array(rows, dtype=np.float32).reshape(-1, VOCAB_SIZE)

    def _check_no_shared_writes(self, runs: list[Run], block_size: int) -> None:
        for run in runs:
            first, last = run.start // block_size, (run.start + run.tokens.size - 1) // block_size
            written = set(run.table[first : last + 1].tolist())
            for other in runs:
                read = set(other.table[: (other.start + other.tokens.size - 1) // block_size + 1].tolist())
                assert other is run or not written & read, "a block is written by one run and used by another"


@dataclass(frozen=True)
class Result:
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason


def alone(request: Request, *, capacity: int = 10**9, context_length: int = 4096) -> Result:
    """What `request` must give: one token after the other, without engine, cache or pool."""
    tokenizer = PieceTokenizer()
    sampler = Sampler(request.sampling, request.prompt.tokens, VOCAB_SIZE)
    text = OutputText(tokenizer, request.stop)
    seen: list[int] = []
    for token in request.prompt.tokens:
        seen.append(stored(np.array(seen, dtype=np.uint32), token))
    outputs: list[int] = []
    while True:
        token = sampler.choose(logits(np.array(seen, dtype=np.uint32))).token
        outputs.append(token)
        length = len(request.prompt.tokens) + len(outputs)
        reason = None
        if token == EOS and not request.ignore_eos:
            reason = FinishReason.STOP
        else:
            text.push(token)
            if text.stopped:
                reason = FinishReason.STOP
            elif len(outputs) == request.max_tokens or length == context_length:
                reason = FinishReason.LENGTH
            elif length > capacity:
                reason = FinishReason.CAPACITY
        if reason:
            text.finish()
            return Result(tuple(outputs), text.shown, reason)
        seen.append(stored(np.array(seen, dtype=np.uint32), token))


class Receiver:
    """A sink that keeps what it gets and checks the order of events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, events: list[Event]) -> None:
        assert events, "an empty delivery"
        assert self.finished is None, "an event after Finished"
        self.events += events

    @property
    def finished(self) -> Finished | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished) else None

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(event.token for event in self.events if isinstance(event, Generated))

    @property
    def result(self) -> Result:
        assert self.finished is not None, "no Finished yet"
        assert sum(isinstance(event, Finished) for event in self.events) == 1
        return Result(self.tokens, "".join(event.text for event in self.events), self.finished.reason)


class Bench:
    """An engine without a thread: tests step it and look inside between steps.

    With a folder, there is a disk tier in it. Its readers and its writer work at once unless given.
    """

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 4,
        context_length: int = 4096,
        enabled: bool = True,
        tenant_blocks: int | None = None,
        folder: Path | None = None,
        readers: Executor | None = None,
        writer: Executor | None = None,
        disk_bytes: int = 1 << 20,
        **options,
    ) -> None:
        self.clock = ManualClock()
        self.model = ScriptedModel(context_length)
        self.pool = SlotPool(num_blocks, block_size)
        self.cache = PromptCache(
            num_blocks,
            block_size=block_size,
            bytes_per_block=self.pool.bytes_per_block,
            clock=self.clock,
            enabled=enabled,
            tenant_bytes=tenant_blocks and tenant_blocks * (self.pool.bytes_per_block + BOOKKEEPING_BYTES),
            lower=folder
            and LowerTier(
                DiskTier(folder, "scripted", limit_bytes=disk_bytes, executor=writer),
                read_block=self.pool.read_block,
                write_block=self.pool.write_block,
                readers=readers,
            ),
        )
        self.engine = Engine(
            self.model,
            PieceTokenizer(),
            self.pool,
            self.cache,
            namespace=Namespace("weights", "tokenizer", "", "layout", ""),
            clock=self.clock,
            **options,
        )
        self.receivers: dict[str, Receiver] = {}

    def submit(self, request: Request) -> Receiver:
        receiver = Receiver()
        self.engine.submit(request, receiver)
        self.receivers[request.id] = receiver
        return receiver

    def step(self) -> bool:
        goes_on = self.engine.step()
        self.clock.advance(1.0)
        return goes_on

    def run(self, *requests: Request, max_steps: int = 2000) -> list[Receiver]:
        """Submit all at once and step until everybody has finished."""
        receivers = [self.submit(request) for request in requests]
        self.finish(max_steps)
        return receivers

    def finish(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if all(receiver.finished for receiver in self.receivers.values()):
                return
            self.step()
        raise AssertionError("the engine does not come to an end")
