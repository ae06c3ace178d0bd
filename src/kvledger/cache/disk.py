"""The disk tier: block payloads in checksummed group files, in a folder that belongs to one model and layout.

A group file holds blocks that were put together:

    magic, header length | number of entries | entries | checksum of all this | payloads, one after the other
    entry: parent digest, digest, length of tokens, length of payload, checksum of payload, tokens

Checksums are SHA-256, which processors compute in hardware. A file is written under a temporary name, synced and
renamed, so a name that ends in `.kv` means a complete file; what a crash leaves behind is removed on the next open. The
index is in memory and is rebuilt from the headers. A file that turns out to differ in any byte from what was written is
removed, and its blocks are misses.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from kvledger.cache.digest import DIGEST_BYTES, TOKEN_BYTES, Digest, block_digest, fields_digest
from kvledger.cache.namespace import Namespace
from kvledger.cache.tiers import TierBlock, TierEntry
from kvledger.cache.trie import common_tokens
from kvledger.errors import CacheFolderError

_MAGIC = b"KVLGRP1\n"
_HEAD = struct.Struct("<8sQ")
_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct(f"<{DIGEST_BYTES}s{DIGEST_BYTES}sIQ{DIGEST_BYTES}s")

_BUSY_BYTES = 64 << 20
"""Bytes waiting for the writer from which on only what is evicted should be put."""

_BACKLOG_BYTES = 256 << 20
"""Bytes that may wait for the writer; beyond that, blocks are not taken."""

_log = logging.getLogger(__name__)


def fingerprint(namespace: Namespace, *, block_size: int, bytes_per_block: int) -> str:
    """The folder name for KV of this model and layout. Adapter and tenant are part of every digest in it instead."""
    return fields_digest(
        "disk folder",
        weights=namespace.weights,
        tokenizer=namespace.tokenizer,
        layout=namespace.layout,
        block_size=str(block_size),
        bytes_per_block=str(bytes_per_block),
    ).hex()[:32]


@dataclass(eq=False)
class _Group:
    """One file. `size` is that of the whole file; `parents` are the blocks that come right before its own."""

    number: int
    path: Path
    size: int
    entries: list[DiskEntry] = field(default_factory=list)
    parents: set[Digest] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class DiskEntry:
    """Where a block lies, and what it must be."""

    group: _Group
    parent: Digest
    digest: Digest
    tokens: bytes
    offset: int
    size: int
    checksum: bytes


class DiskTier:
    """A bounded store of blocks in `folder/fingerprint`. One thread owns it, though any may `read`; one process at a
    time has the folder.

    With an `executor` of one worker, files are written on it while the owner goes on; without, `put` writes itself.
    Raises `CacheFolderError` if the folder cannot be used.
    """

    def __init__(self, folder: Path, fingerprint: str, *, limit_bytes: int, executor: Executor | None = None) -> None:
        self.folder = folder / fingerprint
        self.limit_bytes = limit_bytes
        self.bytes_held = 0
        self._executor = executor
        self._entries: dict[Digest, DiskEntry] = {}
        self._children: dict[Digest, list[bytes]] = {}
        self._groups: dict[int, _Group] = {}  # least recently used first
        self._writing: dict[Future[bytes], tuple[_Group, frozenset[Digest]]] = {}
        self._on_their_way: set[Digest] = set()
        self._next = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise CacheFolderError(
                f"The cache folder {self.folder} is in use by another process: stop it or choose another folder."
            ) from None
        except OSError as error:
            raise CacheFolderError(
                f"The cache folder {self.folder} cannot be used ({error.strerror}): choose one that you can write to."
            ) from error
        self._rebuild()

    def close(self) -> None:
        """Finish writing and let the folder go."""
        self.flush()
        os.close(self._lock)

    @property
    def is_busy(self) -> bool:
        self._settle()
        return self._num_unwritten >= _BUSY_BYTES

    @property
    def bytes_unwritten(self) -> int:
        """Bytes that were handed over and wait for the writer: what a crash would lose."""
        self._settle()
        return self._num_unwritten

    @property
    def _num_unwritten(self) -> int:
        return sum(group.size for group, _ in self._writing.values())

    def __len__(self) -> int:
        """Number of blocks that can be found."""
        self._settle()
        return len(self._entries)

    def holds(self, digest: Digest) -> bool:
        return digest in self._entries or digest in self._on_their_way

    def find(self, parent: Digest, data: bytes, block_bytes: int) -> tuple[Sequence[DiskEntry], int]:
        self._settle()
        found: list[DiskEntry] = []
        covered = 0
        for start in range(0, len(data) - block_bytes + 1, block_bytes):
            tokens = data[start : start + block_bytes]
            entry = self._entry(parent, tokens)
            if entry is None:
                break
            found.append(entry)
            parent = entry.digest
            covered += block_bytes
        nearest, count = self._nearest(parent, data[covered : covered + block_bytes])
        if nearest is not None:
            found.append(nearest)
            covered += count * TOKEN_BYTES
        self._touch(list(dict.fromkeys(entry.group for entry in reversed(found))))
        return found, covered

    def read(self, entry: TierEntry) -> bytes:
        assert isinstance(entry, DiskEntry)
        file = os.open(entry.group.path, os.O_RDONLY)
        try:
            payload = os.pread(file, entry.size, entry.offset)
        finally:
            os.close(file)
        if _checksum(payload) != entry.checksum:
            raise ValueError("a payload does not match its checksum")
        return payload

    def drop(self, entry: TierEntry, reason: str) -> None:
        assert isinstance(entry, DiskEntry)
        if entry.group.number in self._groups:  # else it made room for others while it was being read
            _log.warning("%s is left out of the cache: %s", entry.group.path, reason)
            self._forget(entry.group)

    def put(self, blocks: Sequence[TierBlock]) -> bool:
        self._settle()
        fresh = {digest: block for block in blocks if not self.holds(digest := block.digest())}
        if not fresh:
            return True
        size = _header_bytes(fresh.values()) + sum(len(block.payload) for block in fresh.values())
        if size > self.limit_bytes:
            _log.warning("%d blocks of %d bytes exceed the disk tier's limit of %d", len(fresh), size, self.limit_bytes)
            return False
        waiting = self._num_unwritten
        if (waiting and waiting + size > _BACKLOG_BYTES) or not self._make_room(size):
            return False
        group = _Group(self._next, self.folder / f"{self._next:016x}.kv", size)
        self._next += 1
        self.bytes_held += size
        self._on_their_way.update(fresh)
        if self._executor is None:
            future: Future[bytes] = Future()
            try:
                future.set_result(_write(group.path, fresh))
            except OSError as error:
                future.set_exception(error)
        else:
            future = self._executor.submit(_write, group.path, fresh)
        self._writing[future] = (group, frozenset(fresh))
        self._settle()
        return True

    def flush(self) -> None:
        for future in self._writing:
            future.exception()
        self._settle()

    def clear(self, root: Digest | None = None) -> None:
        self.flush()
        for group in list(self._groups.values()) if root is None else self._below(root):
            self._forget(group)

    def files(self) -> list[Path]:
        """The files of all blocks that can be found, when everything that was put is safe."""
        self.flush()
        return [group.path for group in self._groups.values()]

    def verify(self) -> list[str]:
        """Read everything and compare it with its checksums; one sentence per file that is not what was written."""
        return [problem for path in self.files() if (problem := find_problem(path))]

    # -- the index ----------------------------------------------------------------------------------------------------

    def _entry(self, parent: Digest, tokens: bytes) -> DiskEntry | None:
        """The entry with exactly these tokens after exactly this parent; an equal digest alone is not enough."""
        entry = self._entries.get(block_digest(parent, tokens))
        return entry if entry is not None and (entry.parent, entry.tokens) == (parent, tokens) else None

    def _nearest(self, parent: Digest, tokens: bytes) -> tuple[DiskEntry | None, int]:
        """The child of `parent` that shares the most leading tokens with `tokens`, and how many."""
        siblings = self._children.get(parent, [])
        place = bisect_left(siblings, tokens)
        near = siblings[max(place - 1, 0) : place + 1]
        count, best = max(((common_tokens(sibling, tokens), sibling) for sibling in near), default=(0, b""))
        entry = self._entry(parent, best) if count else None
        return entry, count if entry else 0

    def _add(self, group: _Group) -> None:
        self._groups[group.number] = group
        group.parents = {entry.parent for entry in group.entries} - {entry.digest for entry in group.entries}
        for entry in group.entries:
            if entry.digest not in self._entries:
                self._entries[entry.digest] = entry
                insort(self._children.setdefault(entry.parent, []), entry.tokens)
        self._touch(self._ancestry(group))

    def _below(self, root: Digest) -> list[_Group]:
        """The groups with blocks that follow `root`, however far down."""
        found: dict[int, _Group] = {}
        todo = [root]
        while todo:
            parent = todo.pop()
            for tokens in self._children.get(parent, ()):
                entry = self._entry(parent, tokens)
                if entry is not None:
                    found[entry.group.number] = entry.group
                    todo.append(entry.digest)
        return list(found.values())

    def _ancestry(self, group: _Group) -> list[_Group]:
        """`group` and all groups with blocks before its blocks, which must not go before it does; youngest first."""
        found = {group.number: group}
        todo = [group]
        while todo:
            for parent in todo.pop().parents:
                entry = self._entries.get(parent)
                if entry is not None and entry.group.number not in found:
                    found[entry.group.number] = entry.group
                    todo.append(entry.group)
        return [found[number] for number in sorted(found, reverse=True)]

    def _touch(self, groups: Sequence[_Group]) -> None:
        """These were just used, the last one last."""
        for group in groups:
            self._groups[group.number] = self._groups.pop(group.number)

    def _make_room(self, size: int) -> bool:
        while self.bytes_held + size > self.limit_bytes and self._groups:
            self._forget(next(iter(self._groups.values())))
        return self.bytes_held + size <= self.limit_bytes

    def _forget(self, group: _Group) -> None:
        group.path.unlink(missing_ok=True)
        del self._groups[group.number]
        self.bytes_held -= group.size
        for entry in group.entries:
            if self._entries.get(entry.digest) is entry:
                del self._entries[entry.digest]
                siblings = self._children[entry.parent]
                del siblings[bisect_left(siblings, entry.tokens)]
                if not siblings:
                    del self._children[entry.parent]

    # -- files --------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Let what has been written since be found."""
        for future in [future for future in self._writing if future.done()]:
            group, digests = self._writing.pop(future)
            self._on_their_way -= digests
            error = future.exception()
            if error is None:
                group.entries = list(_entries(group, future.result()))
                self._add(group)
            else:
                _log.warning("%s could not be written: %s", group.path, error)
                self.bytes_held -= group.size

    def _rebuild(self) -> None:
        for path in self.folder.glob("*.tmp"):
            path.unlink()
        for path in sorted(self.folder.glob("*.kv")):
            try:
                group = read_group(path)
            except (OSError, ValueError, struct.error) as error:
                _log.warning("%s is left out of the cache: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            self._next = group.number + 1
            self.bytes_held += group.size
            self._add(group)
        self._make_room(0)


def read_group(path: Path) -> _Group:
    """A group file's header. Raises `OSError`, `ValueError` or `struct.error` for a file that cannot be used."""
    size = path.stat().st_size
    group = _Group(int(path.stem, 16), path, size)
    with path.open("rb") as file:
        _, length = _HEAD.unpack(file.read(_HEAD.size))
        file.seek(0)
        group.entries = list(_entries(group, file.read(min(length, size))))
    if group.entries[-1].offset + group.entries[-1].size != size:
        raise ValueError("the file is not as long as it should be")
    return group


def find_problem(path: Path) -> str | None:
    """Read a group file and compare it with its checksums: a sentence if it is not what was written. Any thread may."""
    try:
        group = read_group(path)
        content = path.read_bytes()
    except struct.error:
        return f"{path}: the file is not as long as it should be."
    except (OSError, ValueError) as error:
        return f"{path}: {error}."
    if any(_checksum(content[each.offset : each.offset + each.size]) != each.checksum for each in group.entries):
        return f"{path}: a payload does not match its checksum."
    return None


def _checksum(data: bytes) -> bytes:
    return sha256(data).digest()


def _header_bytes(blocks: Iterable[TierBlock]) -> int:
    return _HEAD.size + _COUNT.size + sum(_ENTRY.size + len(block.tokens) for block in blocks) + DIGEST_BYTES


def _header(blocks: dict[Digest, TierBlock]) -> bytes:
    parts = [_HEAD.pack(_MAGIC, _header_bytes(blocks.values())), _COUNT.pack(len(blocks))]
    for digest, block in blocks.items():
        checksum = _checksum(block.payload)
        parts += _ENTRY.pack(block.parent, digest, len(block.tokens), len(block.payload), checksum), block.tokens
    header = b"".join(parts)
    return header + _checksum(header)


def _entries(group: _Group, content: bytes) -> Iterator[DiskEntry]:
    """The entries of a group file; `content` is at least its header. Raises `ValueError` if it is not sound."""
    magic, length = _HEAD.unpack_from(content) if len(content) >= _HEAD.size else (b"", 0)
    body_end = length - DIGEST_BYTES
    if magic != _MAGIC or not _HEAD.size <= body_end <= len(content) - DIGEST_BYTES:
        raise ValueError("this is no group file of the disk tier")
    if _checksum(content[:body_end]) != content[body_end:length]:
        raise ValueError("the header does not match its checksum")
    (count,) = _COUNT.unpack_from(content, _HEAD.size)
    at, offset = _HEAD.size + _COUNT.size, length
    for _ in range(count):
        parent, digest, num_tokens, size, checksum = _ENTRY.unpack_from(content, at)
        at += _ENTRY.size
        yield DiskEntry(group, Digest(parent), Digest(digest), content[at : at + num_tokens], offset, size, checksum)
        at += num_tokens
        offset += size


def _write(path: Path, blocks: dict[Digest, TierBlock]) -> bytes:
    """Put a group file in place so that it is there completely or not at all, whatever happens. Returns its header."""
    header = _header(blocks)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(header)
            file.writelines(block.payload for block in blocks.values())
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        temporary.unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise
    return header
