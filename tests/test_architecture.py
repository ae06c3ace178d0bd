"""No room imports upwards: the table is the one in docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvledger

ROOT = Path(kvledger.__file__).parent

# A room may import itself and the rooms named here; `cache` and `text` must not need numpy either.
ALLOWED = {
    "clock": set(),
    "errors": set(),
    "text": {"clock", "errors"},
    "cache": {"clock", "errors", "text"},
    "model": {"clock", "errors", "text"},
    "ledger": {"clock", "errors"},
    "engine": {"clock", "errors", "text", "cache", "model"},
    "providers": {"clock", "errors", "text", "cache", "ledger", "engine"},  # of the engine, its values only: see below
    "audit": {"clock", "errors", "text", "cache", "ledger", "providers", "page"},
    "sim": {"clock", "errors", "text", "cache", "ledger"},
    "page": {"errors"},
    "plan": {"clock", "errors", "text", "cache", "model", "ledger", "providers", "page"},
    "explain": {"clock", "errors", "text", "cache", "model", "engine", "ledger", "providers", "page"},
    "bench": {"clock", "errors", "text", "cache", "model", "engine"},
    "api": {"clock", "errors", "text", "cache", "engine", "ledger", "providers"},
    "testing": {"clock", "errors", "text", "cache", "engine", "ledger", "providers", "audit", "api"},
}
ALLOWED["cli"] = set(ALLOWED)  # the verbs sit on top of everything


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a thing comes from"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "kvledger")
    return found


def files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_room_is_in_the_table() -> None:
    assert {room_of(path) for path in files()} <= set(ALLOWED)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_no_room_above_its_own(path: Path) -> None:
    room = room_of(path)
    used = {name.split(".")[1] for name in imports(path) if name.startswith("kvledger.")} - {"__version__"}
    assert used <= ALLOWED[room] | {room}


@pytest.mark.parametrize("room", ["cache", "text"])
def test_rooms_of_pure_rules_do_without_arrays_and_engines(room: str) -> None:
    heavy = {"numpy", "numba", "llvmlite", "torch"}
    for path in (ROOT / room).rglob("*.py"):
        assert not {name.split(".")[0] for name in imports(path)} & heavy, path


def test_providers_know_the_values_of_the_engine_and_nothing_of_its_workings() -> None:
    for path in (ROOT / "providers").rglob("*.py"):
        modules = {name for name in imports(path) if name.startswith("kvledger.engine")}
        assert modules <= {"kvledger.engine.request"}, path
    assert not any(name.startswith("kvledger.engine") for name in imports(ROOT / "engine" / "request.py"))


def test_only_the_clock_reads_the_time() -> None:
    for path in files():
        if room_of(path) == "clock":
            continue
        assert "time" not in imports(path), f"{path} reads the time: take a Clock"
        calls = {node.attr for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Attribute)}
        assert not calls & {"utcnow", "today"}, path
