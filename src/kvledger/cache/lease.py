"""What `acquire` hands out: a lease on blocks, or the news that somebody else is about to write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kvledger.cache.digest import TOKEN_BYTES
from kvledger.cache.miss import Miss
from kvledger.cache.namespace import Namespace
from kvledger.cache.tiers import Loading
from kvledger.cache.trie import NONE, common_tokens
from kvledger.text.prompt import Mark, Segment


class Copy(NamedTuple):
    """KV to copy before the lease's first forward pass: the first `num_tokens` positions of block `src` into `dst`."""

    src: int
    dst: int
    num_tokens: int


@dataclass(frozen=True)
class Pending:
    """A running lease is about to write the block at `position` of this very prompt: ask again after its next commit.

    Nothing was taken, so nothing has to be given back. Waiting gains at least one whole block per commit of the other
    lease, and cannot last: the other lease holds its blocks already, and if it is released the next `acquire` goes on.
    """

    position: int


@dataclass(frozen=True)
class OverQuota:
    """The tenant's running leases hold too much of what it may hold: ask again when one of them was released.

    Nothing was taken. Other tenants are not concerned: for them there may be room.
    """


class Inquiry(NamedTuple):
    """What is asked about a prompt besides its blocks: kept until the lease's miss can be told."""

    namespace: Namespace
    segments: tuple[Segment, ...]
    again: bool


@dataclass(eq=False)
class Generation:
    """What a namespace holds from one clearing to the next."""

    is_over: bool = False


class Lease:
    """Blocks held for one sequence, from `acquire` until `release`. Made by the cache, read by the engine.

    The blocks in `table` are valid, and hold KV of this sequence only, until the lease is released; nobody evicts or
    frees them before. Positions below `reused` need no computing once `copies` have been made; the rest is written by
    the lease's owner, who says so with `commit`.
    """

    __slots__ = (
        "committed",
        "copies",
        "data",
        "extra",
        "generation",
        "inquiry",
        "loading",
        "marks",
        "miss",
        "node",
        "reused",
        "sources",
        "table",
        "tenant",
    )

    def __init__(self, table: list[int], tenant: int) -> None:
        self.table = table
        """`table[i]` is the block that holds positions `i * block_size` and on."""
        self.reused = 0
        """Leading tokens whose KV exists already; at most the number of prompt tokens less one."""
        self.copies: tuple[Copy, ...] = ()
        """To make with `KVPool.copy_block` before the first forward pass; sources are held until the first commit."""
        self.loading: Loading | None = None
        """What the lower tier is bringing up. Compute nothing until `PromptCache.receive` has taken it in: only then is
        known how much is reused."""
        self.miss: Miss | None = None
        """Why the tokens from `reused` on were not reused; None if all but the last were."""

        # The cache's own notes.
        self.tenant = tenant
        self.extra: list[int] = []  # held besides `table`: the trie's twins of blocks of ours
        self.sources: list[int] = []  # held until the copies are made
        self.node = NONE  # trie node of the last full committed block, or root; NONE: not part of the trie
        self.committed = 0  # tokens in full blocks that are in the trie, themselves or through a twin
        self.generation = Generation()
        self.data = b""  # the prompt's token bytes, until all of them are committed
        self.marks: tuple[Mark, ...] = ()
        self.inquiry: Inquiry | None = None

    def open_block(self, block_size: int) -> int:
        """The block after the last full committed one, or NONE if the table ends there."""
        index = self.committed // block_size
        return self.table[index] if index < len(self.table) else NONE


class Writers:
    """Running leases by the node below which they are going to write the next block of their prompt."""

    def __init__(self) -> None:
        self._by_node: dict[int, list[Lease]] = {}

    def add(self, lease: Lease) -> None:
        self._by_node.setdefault(lease.node, []).append(lease)

    def discard(self, lease: Lease) -> None:
        """Of a lease that is among the writers, or is not; its node is the same as when it was added."""
        writers = self._by_node.get(lease.node)
        if writers is not None and lease in writers:
            writers.remove(lease)
            if not writers:
                del self._by_node[lease.node]

    def discard_over(self) -> None:
        """Forget the leases whose generation is over."""
        for node, writers in list(self._by_node.items()):
            self._by_node[node] = [writer for writer in writers if not writer.generation.is_over]
            if not self._by_node[node]:
                del self._by_node[node]

    def common_tokens(self, node: int, position: int, tokens: bytes) -> int:
        """The most leading tokens of `tokens` that a writer below `node`, which ends at `position`, will write."""
        start = position * TOKEN_BYTES
        return max(
            (common_tokens(writer.data[start : start + len(tokens)], tokens) for writer in self._by_node.get(node, ())),
            default=0,
        )
