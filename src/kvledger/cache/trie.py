"""The trie of blocks: which tokens, after which tokens, lie in which block.

One node is one block and has the block's number. A node's key is its parent's number (4 bytes) followed by its exact
token bytes, all keys are in one dictionary, and so a step down the trie is one look-up decided by equality; a hash
collision costs time and nothing else. Roots, one per namespace, are numbered after the last block.

Only a full block has children. Of the children of one node, none is a prefix of another: an open block that a longer
sibling covers is of no more use to anyone, and leaves.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kvledger.cache.digest import DIGEST_BYTES, TOKEN_BYTES, Digest, block_digest
from kvledger.cache.namespace import Namespace

NONE = -1
"""No child."""

MANY = -2
"""More than one child: they are in `Trie.fans`."""

PARENT_BYTES = 4

_CHUNK = 512


class Fan:
    """The keys of a node's children in order, so that the nearest neighbours of any key are at hand.

    Sorted chunks of bounded length: an insertion moves at most some thousand pointers however many children there are.
    """

    def __init__(self, keys: list[bytes]) -> None:
        self._chunks = [sorted(keys)]
        self._firsts = [self._chunks[0][0]]

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            yield from chunk

    def add(self, key: bytes) -> bytes | None:
        """Put a key in; returns the key that was a prefix of it, which is out now, if there was one."""
        index = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = self._chunks[index]
        place = bisect_right(chunk, key)
        below = chunk[place - 1] if place else None
        if below is not None and key.startswith(below):
            chunk[place - 1] = key
            self._firsts[index] = chunk[0]
            return below
        chunk.insert(place, key)
        self._firsts[index] = chunk[0]
        if len(chunk) > 2 * _CHUNK:
            self._chunks.insert(index + 1, chunk[_CHUNK:])
            self._firsts.insert(index + 1, chunk[_CHUNK])
            del chunk[_CHUNK:]
        return None

    def remove(self, key: bytes) -> None:
        index = bisect_right(self._firsts, key) - 1
        chunk = self._chunks[index]
        del chunk[bisect_right(chunk, key) - 1]
        if chunk:
            self._firsts[index] = chunk[0]
        else:
            del self._chunks[index], self._firsts[index]

    def only(self) -> bytes | None:
        """The last key left, or None if there are more."""
        if len(self._chunks) == 1 and len(self._chunks[0]) == 1:
            return self._chunks[0][0]
        return None

    def neighbours(self, key: bytes) -> list[bytes]:
        """The greatest key that is not above `key`, and the least that is. No other shares a longer prefix with it."""
        index = max(bisect_right(self._firsts, key) - 1, 0)
        chunk = self._chunks[index]
        place = bisect_right(chunk, key)
        near = chunk[max(place - 1, 0) : place + 1]
        if place == len(chunk) and index + 1 < len(self._chunks):
            near.append(self._firsts[index + 1])
        return near


def key_of(parent: int, tokens: bytes) -> bytes:
    """The dictionary key of a node: whose child it is, and its exact tokens."""
    return parent.to_bytes(PARENT_BYTES, "little") + tokens


def common_tokens(left: bytes, right: bytes) -> int:
    """Number of leading tokens that two token byte strings share."""
    length = min(len(left), len(right))
    for at in range(0, length - TOKEN_BYTES + 1, TOKEN_BYTES):
        if left[at : at + TOKEN_BYTES] != right[at : at + TOKEN_BYTES]:
            return at // TOKEN_BYTES
    return length // TOKEN_BYTES


class Trie:
    """Blocks by content. Knows nothing of time, leases or limits.

    `with_digests` keeps the digest of every block as well, for events and lower tiers.
    """

    def __init__(self, num_blocks: int, block_size: int, *, with_digests: bool = False) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.nodes: dict[bytes, int] = {}
        self.keys: list[bytes | None] = [None] * num_blocks
        self.parents = array("i", [NONE]) * num_blocks
        """By block; the value outlives the block's stay in the trie."""
        self.children = array("i", [NONE]) * num_blocks
        """By node, roots included: its only child, NONE or MANY."""
        self.fans: dict[int, Fan] = {}
        self.roots: dict[str, dict[Namespace, int]] = {}
        """By tenant."""
        self.has_digests = with_digests
        self._digests = bytearray(DIGEST_BYTES * num_blocks if with_digests else 0)

    def root(self, namespace: Namespace) -> int:
        """The root of a namespace, made on first use."""
        spaces = self.roots.setdefault(namespace.tenant, {})
        root = spaces.get(namespace)
        if root is None:
            root = spaces[namespace] = len(self.children)
            self.children.append(NONE)
            if self.has_digests:
                self._digests += namespace.digest()
        return root

    def walk(self, root: int, data: bytes, num_blocks: int) -> list[int]:
        """The nodes of the longest path from `root` along the first `num_blocks` full blocks of `data`."""
        width = self.block_size * TOKEN_BYTES
        get = self.nodes.get
        path: list[int] = []
        append = path.append
        node: int | None = root
        for start in range(0, num_blocks * width, width):
            node = get(node.to_bytes(4, "little") + data[start : start + width])  # type: ignore[union-attr]
            if node is None:
                break
            append(node)
        return path

    def path_to(self, node: int) -> list[int]:
        """The nodes from the root's child down to `node`; empty for a root."""
        path: list[int] = []
        while node < self.num_blocks:
            path.append(node)
            node = self.parents[node]
        path.reverse()
        return path

    def children_of(self, node: int) -> list[int]:
        """The children of `node`, in the order of their token bytes."""
        child = self.children[node]
        if child == MANY:
            return [self.nodes[key] for key in self.fans[node]]
        return [] if child == NONE else [child]

    def nearest_child(self, node: int, tokens: bytes) -> tuple[int, int]:
        """The child of `node` that shares the most leading tokens with `tokens`, and how many; `(NONE, 0)` if none."""
        child = self.children[node]
        if child == NONE:
            return NONE, 0
        if child != MANY:
            return child, common_tokens(self.tokens_of(child), tokens)
        best, most = NONE, -1
        for key in self.fans[node].neighbours(key_of(node, tokens)):
            count = common_tokens(key[PARENT_BYTES:], tokens)
            if count > most:
                best, most = self.nodes[key], count
        return best, most

    def covers(self, parent: int, tokens: bytes) -> bool:
        """Whether a child of `parent` begins with all of `tokens`."""
        child, count = self.nearest_child(parent, tokens)
        return child != NONE and count * TOKEN_BYTES == len(tokens)

    def tokens_of(self, block: int) -> bytes:
        """The token bytes of a block that is in the trie."""
        key = self.keys[block]
        assert key is not None, f"block {block} is not in the trie"
        return key[PARENT_BYTES:]

    def digest_of(self, node: int) -> Digest:
        """The digest of a block or root; a block's outlives its stay in the trie. Only with digests."""
        return Digest(bytes(self._digests[node * DIGEST_BYTES : (node + 1) * DIGEST_BYTES]))

    def digests_of(self, blocks: Sequence[int]) -> tuple[Digest, ...]:
        """The digest of each of `blocks`, which need not be in the trie any more. Only with digests."""
        with memoryview(self._digests) as held:
            return tuple(
                [Digest(held[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES].tobytes()) for block in blocks]
            )

    def insert(self, parent: int, tokens: bytes, block: int) -> int:
        """Put `block` under `parent`; no child may cover `tokens` yet.

        Returns the open sibling that `block` now covers, which has left the trie, or NONE.
        """
        keys, children = self.keys, self.children
        key = key_of(parent, tokens)
        self.nodes[key] = block
        keys[block] = key
        self.parents[block] = parent
        if self.has_digests:
            self._set_digest(block, block_digest(self.digest_of(parent), tokens))
        sibling = children[parent]
        if sibling == NONE:
            children[parent] = block
            return NONE
        if sibling != MANY:
            other = keys[sibling]
            assert other is not None, "a child is not in the trie"
            if key.startswith(other):
                del self.nodes[other]
                keys[sibling] = None
                children[parent] = block
                return sibling
            self.fans[parent] = Fan([other, key])
            children[parent] = MANY
            return NONE
        below = self.fans[parent].add(key)
        if below is None:
            return NONE
        covered = self.nodes.pop(below)
        keys[covered] = None
        return covered

    def insert_chain(self, node: int, data: bytes, blocks: Sequence[int]) -> None:
        """Put full blocks one below the other under `node`, which has no child. `data` are their token bytes."""
        nodes, keys, parents, children = self.nodes, self.keys, self.parents, self.children
        width = self.block_size * TOKEN_BYTES
        first, start = node, 0
        for block in blocks:
            end = start + width
            key = node.to_bytes(4, "little") + data[start:end]
            nodes[key] = block
            keys[block] = key
            parents[block] = node
            children[node] = block
            node = block
            start = end
        if self.has_digests:
            digest, digests = self.digest_of(first), self._digests
            for start, block in zip(range(0, len(data), width), blocks, strict=False):
                digest = block_digest(digest, data[start : start + width])
                at = block * DIGEST_BYTES
                digests[at : at + DIGEST_BYTES] = digest

    def remove(self, run: Sequence[int]) -> list[bytes]:
        """Take a childless block out and then, one after the other, its ancestors as they lose their only child.

        Returns the keys they had.
        """
        nodes, keys, children = self.nodes, self.keys, self.children
        assert children[run[0]] == NONE, f"block {run[0]} still has children"
        removed: list[bytes] = []
        for block in run:
            key = keys[block]
            assert key is not None, f"block {block} is not in the trie"
            del nodes[key]
            keys[block] = None
            children[block] = NONE
            removed.append(key)
        top = run[-1]
        parent = self.parents[top]
        if children[parent] == top:
            children[parent] = NONE
            return removed
        fan = self.fans[parent]
        fan.remove(removed[-1])
        last = fan.only()
        if last is not None:
            children[parent] = nodes[last]
            del self.fans[parent]
        return removed

    def _set_digest(self, block: int, digest: Digest) -> None:
        self._digests[block * DIGEST_BYTES : (block + 1) * DIGEST_BYTES] = digest
