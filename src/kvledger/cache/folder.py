"""A disk tier's folder as it lies there, read without a server and without changing it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvledger.cache.digest import TOKEN_BYTES, Digest
from kvledger.cache.disk import DiskEntry, DiskTier, find_problem, read_group
from kvledger.errors import CacheFolderError


@dataclass(frozen=True)
class StoredStretch:
    """Blocks on disk that follow each other without a branch.

    `depth` is the number of branches above it, `position` the number of tokens before it as far as they are on disk;
    `parent` is the digest of what comes before it. `modified` is when its last block was written, in seconds since
    the Unix epoch.
    """

    depth: int
    position: int
    parent: Digest
    num_tokens: int
    num_blocks: int
    num_bytes: int
    modified: float


@dataclass(frozen=True)
class Shelf:
    """What is kept for one model and layout: a folder of group files."""

    path: Path
    num_bytes: int
    num_files: int
    stretches: tuple[StoredStretch, ...]
    problems: tuple[str, ...]
    """One sentence for each file that cannot be used."""


def shelves(folder: Path) -> list[Path]:
    """The folders of single models below the folder of a disk tier; raises `CacheFolderError` if it is none."""
    if not folder.is_dir():
        raise CacheFolderError(f"{folder} is no folder: give the one that `kvledger serve --cache-folder` was given.")
    if found := sorted(path.parent for path in folder.glob("*/lock")):
        return found
    raise CacheFolderError(f"{folder} is no cache folder: nothing that a server keeps there is in it.")


def read_shelf(path: Path) -> Shelf:
    """Read the headers of every file in the folder of one model."""
    entries: dict[Digest, DiskEntry] = {}
    problems = []
    sizes = {}
    for file in sorted(path.glob("*.kv")):
        try:
            group = read_group(file)
        except FileNotFoundError:  # a server is using the folder, and has made room
            continue
        except (OSError, ValueError, struct.error) as error:
            problems.append(f"{file}: {error}.")
            continue
        sizes[file] = group.size
        for entry in group.entries:
            entries.setdefault(entry.digest, entry)
    return Shelf(path, sum(sizes.values()), len(sizes), tuple(_stretches(entries)), tuple(problems))


def verify_shelf(path: Path) -> list[str]:
    """Read every byte in the folder of one model: one sentence for each file that is not what was written."""
    return [problem for file in sorted(path.glob("*.kv")) if (problem := find_problem(file)) and file.exists()]


def clear_shelf(path: Path) -> int:
    """Remove every block kept for one model; returns how many bytes that frees.

    Raises `CacheFolderError` while a server has the folder: only it may remove what it knows of.
    """
    num_bytes = sum(file.stat().st_size for file in path.glob("*.kv"))
    tier = DiskTier(path.parent, path.name, limit_bytes=max(num_bytes, 1))
    try:
        tier.clear()
    finally:
        tier.close()
    return num_bytes


def _stretches(entries: dict[Digest, DiskEntry]) -> Iterator[StoredStretch]:
    """Depth first; whatever's parent is not there begins a tree."""
    children: dict[Digest, list[DiskEntry]] = {}
    for entry in entries.values():
        children.setdefault(entry.parent, []).append(entry)
    for siblings in children.values():
        siblings.sort(key=lambda entry: entry.tokens)
    times: dict[Path, float] = {}
    roots = sorted(parent for parent in children if parent not in entries)
    todo = [(entry, 0, 0) for root in reversed(roots) for entry in reversed(children[root])]
    while todo:
        first, depth, position = todo.pop()
        run = [first]
        while len(below := children.get(run[-1].digest, [])) == 1:
            run += below
        num_tokens = sum(len(entry.tokens) for entry in run) // TOKEN_BYTES
        last = run[-1].group.path
        if last not in times:
            times[last] = last.stat().st_mtime if last.exists() else 0.0
        yield StoredStretch(
            depth, position, first.parent, num_tokens, len(run), sum(entry.size for entry in run), times[last]
        )
        todo += [(entry, depth + 1, position + num_tokens) for entry in reversed(below)]
