"""From a model's name to a running engine: the one place where the rooms are put together."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvledger import __version__
from kvledger.cache import Namespace, PromptCache
from kvledger.cache.digest import fields_digest
from kvledger.cache.disk import DiskTier, fingerprint
from kvledger.cache.events import EventLog
from kvledger.cache.retention import BOOKKEEPING_BYTES, blocks_within
from kvledger.cache.tiers import GROUP_BLOCKS, LowerTier
from kvledger.clock import Clock, SystemClock
from kvledger.engine.engine import Engine
from kvledger.engine.request import demand
from kvledger.errors import InvalidRequestError
from kvledger.model.kv import KVDtype, KVPool, bytes_per_block, default_dtype
from kvledger.model.llama import LlamaModel
from kvledger.model.store import resolve
from kvledger.model.weights import load
from kvledger.text.answers import Answers
from kvledger.text.template import ChatTemplate
from kvledger.text.tokenizer import Tokenizer

GIB = 1 << 30


@dataclass(frozen=True)
class EngineSettings:
    """What to load and how much of the machine to use.

    `model` is a known name or a path. `mode` "fast" computes with int8 activations, "exact" with float32. `kv_dtype` is
    how KV is stored; None: `default_dtype`.
    `kv_memory` is the size of the KV pool in bytes; the system hands it out as it fills. `threads` None takes every
    core this process may use. `context_length` lowers the model's own limit, None keeps it. `step_tokens` bounds the
    work of one step, and with it how long a running answer waits for the next token while somebody's prompt is read.
    `cache` False keeps nothing from one request for the next; `cache_ttl` is how long an unused prefix stays, in
    seconds, None for ever. `tenant_memory` is how much of the KV pool one tenant may hold, in bytes; None: all of it.
    With a `cache_folder`, what leaves the pool goes there, and comes back from there, after a restart too;
    `cache_disk` is the size in bytes that it may take there.
    """

    model: str = "smollm2"
    mode: Literal["fast", "exact"] = "fast"
    kv_dtype: KVDtype | None = None
    kv_memory: int = GIB
    threads: int | None = None
    context_length: int | None = None
    max_running: int = 16
    max_queue: int = 256
    step_tokens: int = 512
    cache: bool = True
    cache_ttl: float | None = 300.0
    tenant_memory: int | None = None
    cache_folder: Path | None = None
    cache_disk: int = 4 * GIB

    def __post_init__(self) -> None:
        demand("threads", self.threads, self.threads is None or self.threads >= 1, "1 or more")
        demand("context_length", self.context_length, (self.context_length or 2) >= 2, "2 or more")
        demand("max_running", self.max_running, self.max_running >= 1, "1 or more")
        demand("max_queue", self.max_queue, self.max_queue >= 1, "1 or more")
        demand("step_tokens", self.step_tokens, self.step_tokens >= 2 * self.max_running, "twice max_running or more")
        demand("cache_ttl", self.cache_ttl, self.cache_ttl is None or self.cache_ttl > 0, "more than 0 seconds")


@dataclass(frozen=True)
class Loaded:
    """A model ready to answer. `engine` is not started yet; `template` is None for a model without a chat template."""

    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    answers: Answers
    model_name: str


def physical_memory() -> int:
    """Bytes of memory in this machine; where the system does not say, more than anybody has."""
    if not hasattr(os, "sysconf"):
        return 1 << 62
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def load_engine(
    settings: EngineSettings,
    *,
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> Loaded:
    """Load the model, take the memory, compile what is not compiled yet, and put an engine around it.

    `progress` gets a line for whatever takes long, such as compiling kernels, once per machine. Raises
    `ModelNotFoundError`, `ModelFileError`, `CacheFolderError`, and `InvalidRequestError` for settings that do not go
    together.
    """
    clock = clock or SystemClock()
    weights = load(resolve(settings.model))
    kv_dtype = settings.kv_dtype or default_dtype(weights.config, settings.mode)
    block_bytes = bytes_per_block(weights.config, kv_dtype)
    num_blocks = settings.kv_memory // block_bytes
    if num_blocks < 1:
        raise InvalidRequestError(
            f"A KV memory of {settings.kv_memory} bytes is too small: this model needs {block_bytes} bytes for"
            f" {KVPool.block_size} tokens.",
            param="kv_memory",
        )
    if settings.kv_memory > (memory := physical_memory()):
        raise InvalidRequestError(
            f"A KV memory of {settings.kv_memory} bytes is more than this machine has ({memory}): give less.",
            param="kv_memory",
        )
    if settings.tenant_memory is not None and blocks_within(settings.tenant_memory, block_bytes) < 1:
        raise InvalidRequestError(
            f"A tenant's memory of {settings.tenant_memory} bytes is too small: this model needs"
            f" {block_bytes + BOOKKEEPING_BYTES} bytes for {KVPool.block_size} tokens.",
            param="tenant_memory",
        )
    tokenizer = weights.tokenizer
    namespace = Namespace(
        weights=weights.fingerprint,
        tokenizer=fields_digest("text", tokenizer=tokenizer.fingerprint, template=tokenizer.chat_template or "").hex(),
        adapter="",
        layout=(
            f"{kv_dtype} in blocks of {KVPool.block_size}, computed in {settings.mode} mode"
            f" by kvledger {__version__}"
        ),
        tenant="",
    )
    model = LlamaModel(
        weights,
        mode=settings.mode,
        kv_dtype=kv_dtype,
        threads=settings.threads,
        context=settings.context_length,
        progress=progress,
    )
    template = None
    if tokenizer.chat_template is not None:
        template = ChatTemplate(tokenizer.chat_template, tokenizer, clock=clock, limit=model.context - 1)
    answers = Answers()
    pool = KVPool(weights.config, num_blocks, kv_dtype)
    cache = PromptCache(
        num_blocks,
        block_size=KVPool.block_size,
        bytes_per_block=block_bytes,
        clock=clock,
        ttl=settings.cache_ttl,
        tenant_bytes=settings.tenant_memory,
        events=EventLog(),
        lower=_lower_tier(settings, namespace, pool, readers=model.threads),
        enabled=settings.cache,
    )
    engine = Engine(
        model,
        tokenizer,
        pool,
        cache,
        namespace=namespace,
        clock=clock,
        answers=answers,
        max_running=settings.max_running,
        max_queue=settings.max_queue,
        step_tokens=settings.step_tokens,
        context_length=model.context,
    )
    return Loaded(engine, tokenizer, template, answers, Path(settings.model).name.removesuffix(".gguf"))


def _lower_tier(settings: EngineSettings, namespace: Namespace, pool: KVPool, *, readers: int) -> LowerTier | None:
    """The disk tier, in its folder for this model and layout. Raises what `load_engine` raises."""
    if settings.cache_folder is None or not settings.cache:
        return None
    smallest = GROUP_BLOCKS * (pool.bytes_per_block + BOOKKEEPING_BYTES)
    if settings.cache_disk < smallest:
        raise InvalidRequestError(
            f"A cache of {settings.cache_disk} bytes on disk is too small: this model needs at least {smallest} bytes.",
            param="cache_disk",
        )
    return LowerTier(
        DiskTier(
            settings.cache_folder,
            fingerprint(namespace, block_size=pool.block_size, bytes_per_block=pool.bytes_per_block),
            limit_bytes=settings.cache_disk,
            executor=ThreadPoolExecutor(1, thread_name_prefix="kvledger-write", initializer=_give_way),
        ),
        read_block=pool.read_block,
        write_block=pool.write_block,
        readers=ThreadPoolExecutor(readers, thread_name_prefix="kvledger-read"),
    )


def _give_way() -> None:
    """Let this thread run only while a core has nothing else to do, where the system can do that.

    The threads of a step wait for each other, so taking one core for a moment costs all of them that moment, and more.
    """
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # forbidden in some sandboxes
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
