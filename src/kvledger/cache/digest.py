"""Digests for disk, events and logs. In memory the trie compares exact tokens and needs none of them.

BLAKE2b-256 (RFC 7693) over typed, length-framed fields: every digest starts with a domain, every field carries its
name, so `adapter="X"` can never meet `tenant="X"` and no two field lists share an encoding. Nothing depends on
Python's own `hash`, on the process or on the machine's byte order.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NewType

Digest = NewType("Digest", bytes)
"""32 bytes."""

DIGEST_BYTES = 32
TOKEN_BYTES = 4

_VERSION = b"kvledger-1"
"""Part of every digest: change it whenever the encoding changes, and old entries become unreachable, not wrong."""

_BLOCK_DOMAIN = b"kvl-block-1"
_PREFIX_DOMAIN = b"kvl-prefix-1"

_BLOCK = blake2b(digest_size=DIGEST_BYTES, person=_BLOCK_DOMAIN)
_PREFIX = blake2b(digest_size=DIGEST_BYTES, person=_PREFIX_DOMAIN)


def _frame(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def fields_digest(domain: str, /, **fields: str) -> Digest:
    """Digest of named text fields, in the order given."""
    framed = [_frame(_VERSION), _frame(domain.encode())]
    for name, value in fields.items():
        framed.append(_frame(name.encode()))
        framed.append(_frame(value.encode("utf-8", "surrogatepass")))
    return Digest(blake2b(b"".join(framed), digest_size=DIGEST_BYTES).digest())


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit integers: the exact bytes that the trie compares and that digests cover."""
    packed = array("i", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def token_at(data: bytes, index: int) -> int:
    """The token id at `index` of token bytes."""
    start = index * TOKEN_BYTES
    return int.from_bytes(data[start : start + TOKEN_BYTES], "little", signed=True)


def block_digest(parent: bytes, tokens: bytes) -> Digest:
    """Digest of one block: of its own tokens and, through `parent` (32 bytes), of everything before them.

    `parent` is the digest of the block before or, for the first block, of the namespace. The domain is BLAKE2b's
    personalisation, and the parent has a fixed length, so the encoding stays unambiguous without a frame.
    """
    state = _BLOCK.copy()  # twice as fast as setting a new one up
    state.update(parent + tokens)
    return Digest(state.digest())


def prefix_digest(parent: Digest, part: Digest) -> Digest:
    """Digest of a prefix that ends with `part` and continues the prefix `parent`; both are 32 bytes."""
    state = _PREFIX.copy()
    state.update(parent + part)
    return Digest(state.digest())


def chain_digests(root: bytes, tokens: Sequence[int], block_size: int) -> Iterator[Digest]:
    """The digest of each full block of `tokens`, first to last, under a namespace's digest `root`."""
    data = token_bytes(tokens)
    width = block_size * TOKEN_BYTES
    digest = Digest(root)
    for start in range(0, len(data) - width + 1, width):
        digest = block_digest(digest, data[start : start + width])
        yield digest
