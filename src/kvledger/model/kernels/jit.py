"""From IR to a callable address, with the machine code kept on disk.

Compiled kernels live in the user's cache folder under a name made of this package's sources, the processor and the
LLVM version, so that nothing stale is ever loaded and a second start compiles nothing. Numba's own cache of the step
loop is put in the same place for the same reason.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm
import numba
import platformdirs
from llvmlite import ir
from numba import types

from kvledger.model.kernels.cpu import Isa, features
from kvledger.model.kernels.emit import I64, VOID, Emit

# Numba's settings, as a value whose attributes are not declared anywhere.
settings: Any = numba.config

Build = Callable[[Emit, list[ir.Value]], None]
Function = TypeVar("Function", bound=Callable[..., Any])

_keep_alive: list[Any] = []


@cache
def cache_folder() -> Path:
    """Where compiled kernels are kept: below NUMBA_CACHE_DIR if that is set, else in the user's cache folder."""
    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(path.read_bytes())
    for fact in (
        llvm.get_host_cpu_name(),
        ",".join(sorted(features())),
        metadata.version("llvmlite"),
        numba.__version__,
    ):
        sources.update(fact.encode() + b"\n")
    root = os.environ.get("NUMBA_CACHE_DIR") or os.path.join(platformdirs.user_cache_dir("kvledger"), "kernels")
    return Path(root) / sources.hexdigest()[:16]


def is_warm() -> bool:
    """Whether an earlier process has left compiled kernels; if not, the first model takes seconds to prepare."""
    return any(path.is_file() for path in cache_folder().rglob("*"))  # Numba makes empty folders when asked for nothing


def kept(function: Function) -> Function:
    """Compile with Numba, without the interpreter lock, and keep the machine code in `cache_folder`."""
    with _numba_cache():
        try:
            compiled: Any = numba.njit(nogil=True, cache=True)(function)
        except RuntimeError:  # no folder that can be written
            compiled = numba.njit(nogil=True)(function)
    return cast(Function, compiled)


def kept_address(function: Callable[..., None]) -> int:
    """The address of a C function of int64 arguments, compiled and kept as `kept` does it.

    The arguments are those of `function`, which may close over numbers and tuples of numbers only: they are part of
    what its machine code is found by.
    """
    signature = types.void(*[types.int64] * function.__code__.co_argcount)
    with _numba_cache():
        try:
            compiled: Any = numba.cfunc(signature, cache=True)(function)
        except RuntimeError:
            compiled = numba.cfunc(signature)(function)
    _keep_alive.append(compiled)
    return int(compiled.address)


@contextmanager
def _numba_cache() -> Iterator[None]:
    """Within it, Numba's own cache lies in `cache_folder`."""
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(cache_folder())
    try:
        yield
    finally:
        settings.CACHE_DIR = before


_addresses: dict[tuple[str, Isa], int] = {}


def address_of(name: str, num_args: int, build: Build, isa: Isa) -> int:
    """The address of a C function `void name(int64 * num_args)`; `name` must say everything that `build` depends on."""
    key = (name, isa)
    if key not in _addresses:
        stored = cache_folder() / f"{name}.{isa.value}.o"
        try:
            code = stored.read_bytes()
        except OSError:
            code = _compile(name, num_args, build, isa)
            _store(stored, code)
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(isa))
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        _keep_alive.append(engine)
        _addresses[key] = engine.get_function_address(name)
    return _addresses[key]


@cache
def _target_machine(isa: Isa) -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    flags = llvm.get_host_cpu_features().flatten()
    if isa is Isa.AVX2:
        flags += ",-avx512f"  # so that a larger processor runs, and tests, the same code as one that ends at AVX2
    return target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=flags, opt=3, jit=True, reloc="pic")


def _compile(name: str, num_args: int, build: Build, isa: Isa) -> bytes:
    module = ir.Module(name)
    module.triple = llvm.get_process_triple()
    function = ir.Function(module, ir.FunctionType(VOID, [I64] * num_args), name)
    emit = Emit(function, isa)
    build(emit, list(function.args))
    emit.b.ret_void()
    machine = _target_machine(isa)
    parsed = llvm.parse_assembly(str(module))
    parsed.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    return bytes(machine.emit_object(parsed))


def _store(path: Path, code: bytes) -> None:
    """Best effort: a folder that cannot be written costs the next start its speed, nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)
    except OSError:
        return
