"""`kvledger serve`: a model behind HTTP."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvledger.errors import InvalidRequestError

if TYPE_CHECKING:
    from kvledger.ledger.keys import KeyRing
    from kvledger.ledger.writer import LedgerWriter

DRAIN = 8.0
"""Seconds that running requests get to finish in when the server is told to stop; containers are killed after 10."""

CACHE_DISK = "4G"
"""What `--cache-folder` takes unless told otherwise."""

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)


def serve(
    model: Annotated[str, typer.Option(help="A model's name, or the path of a GGUF file or a folder.")] = "smollm2",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    alias: Annotated[list[str] | None, typer.Option(help="Another name for the model in requests.")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="KVLEDGER_API_KEY",
            help="Key that clients must send; each is a tenant. Spaces separate several in the variable.",
        ),
    ] = None,
    operator_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="KVLEDGER_OPERATOR_KEY",
            help="Key that may also see and clear what is cached for every key, and read /metrics.",
        ),
    ] = None,
    access_log: Annotated[bool, typer.Option(help="Write a line of JSON per request to standard error.")] = True,
    kv_dtype: Annotated[Literal["f16", "f32", "int8"], typer.Option(help="How KV is stored.")] = "f16",
    kv_memory: Annotated[str, typer.Option(metavar="SIZE", help="Size of the KV cache, such as 512M or 2G.")] = "1G",
    tenant_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="The most of it that one key may hold; all of it unless given.")
    ] = None,
    cache_folder: Annotated[
        Path | None, typer.Option(help="Folder to keep KV in beyond memory, and for the next start.")
    ] = None,
    cache_disk: Annotated[str, typer.Option(metavar="SIZE", help="The most to keep in that folder.")] = CACHE_DISK,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads that compute; all cores unless given.")] = None,
    mode: Annotated[
        Literal["fast", "exact"],
        typer.Option(help="fast rounds activations to 8 bits; exact is slower, in float32."),
    ] = "fast",
    max_running: Annotated[int, typer.Option(min=1, help="Sequences computed at the same time.")] = 16,
    max_queue: Annotated[int, typer.Option(min=1, help="Sequences of one key that may wait; then, status 429.")] = 256,
    context: Annotated[
        int | None, typer.Option(min=2, help="Longest context in tokens; the model's own unless given.")
    ] = None,
    persona: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="PROVIDER:MODEL",
            help="Answer every request as this model, by its caching rules and prices; else as the one it names.",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="KVLEDGER_LEDGER",
            metavar="URL|FILE|none",
            help="Where receipts go.  [default: ledger.db in the user's data folder]",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="Where the keys made with `kvledger keys` are.  [default: beside the ledger]",
            show_default=False,
        ),
    ] = None,
    machine_price: Annotated[
        str | None,
        typer.Option(metavar="USD/hour", help="What budgets are charged for requests under the model's own name."),
    ] = None,
) -> None:
    """Serve a model over HTTP, in the way of OpenAI, Anthropic and Gemini.

    Example: kvledger serve --as anthropic:claude-sonnet-5.5 --machine-price 2.50/hour
    """
    kv_bytes = parse_size(kv_memory, "--kv-memory")
    tenant_bytes = None if tenant_memory is None else parse_size(tenant_memory, "--tenant-memory")
    disk_bytes = parse_size(cache_disk, "--cache-disk")
    if not all((*(api_key or ()), *(operator_key or ()))):
        raise InvalidRequestError("An API key must not be empty: give one, or leave the option out.")

    from kvledger.api.server import bind

    listener = bind(host, port)  # before anything slow: a port in use is known at once
    address, bound_port = listener.getsockname()[:2]
    accounts = open_accounts(ledger, keys)
    locked = bool(api_key or operator_key or accounts.ring)
    if not locked and not ipaddress.ip_address(address).is_loopback:
        raise InvalidRequestError(
            f"Without keys everybody who can reach {host} could use this server: make one with `kvledger keys add NAME`"
            " or give --api-key, or leave --host out to serve this machine alone."
        )

    from concurrent.futures import ThreadPoolExecutor

    from kvledger.api.app import create_app
    from kvledger.api.auth import Keys
    from kvledger.api.books import Books, Memory
    from kvledger.api.log import log_to_stderr
    from kvledger.api.names import Names
    from kvledger.api.server import Server, listen
    from kvledger.api.service import Service
    from kvledger.clock import SystemClock
    from kvledger.engine.load import EngineSettings, load_engine
    from kvledger.ledger.budget import Budgets
    from kvledger.ledger.machine import MachinePrice

    settings = EngineSettings(
        model=model,
        mode=mode,
        kv_dtype=kv_dtype,
        kv_memory=kv_bytes,
        threads=threads,
        context_length=context,
        max_running=max_running,
        max_queue=max_queue,
        tenant_memory=tenant_bytes,
        cache_folder=cache_folder,
        cache_disk=disk_bytes,
    )
    Names((model,), persona)  # what is wrong with it is known before the model is loaded
    price = MachinePrice.parse(machine_price) if machine_price else None
    clock = SystemClock()
    loaded = load_engine(settings, clock=clock, progress=lambda message: typer.echo(message, err=True))
    if loaded.template is None:
        raise InvalidRequestError(f"The model {model} has no chat template: serve one made for chat.")
    names = tuple(dict.fromkeys((served_name(model), model, *(alias or ()))))
    memory = loaded.engine.with_cache(
        lambda cache: Memory(cache.bytes_per_block / cache.block_size, cache.bytes_per_block * cache.pool.num_blocks)
    )
    books = Books(
        clock,
        names[0],
        budgets=Budgets(clock, accounts.spent) if accounts.ring else None,
        memory=memory,
        machine_price=price,
    )
    if accounts.writer is not None:
        books.writer = accounts.writer
    service = Service(
        engine=loaded.engine,
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        answers=loaded.answers,
        model_names=names,
        keys=Keys(api_key or (), operator_key or (), accounts.ring),
        clock=clock,
        workers=ThreadPoolExecutor(4, thread_name_prefix="kvledger-prompt"),
        started=int(clock.now()),
        persona=persona,
        books=books,
    )

    def close_engine(drain: float) -> None:
        service.closing = True
        loaded.engine.close(drain=drain)

    if access_log:
        log_to_stderr()
    server = Server(create_app(service), close_engine=close_engine, drain=DRAIN)
    listen(listener)
    loaded.engine.start()
    if (capacity := loaded.engine.capacity) < loaded.engine.context_length:
        option = f"--kv-memory {kv_memory}" if tenant_memory is None else f"--tenant-memory {tenant_memory}"
        typer.echo(
            f"Warning: {option} holds {capacity} tokens, fewer than the context of"
            f" {loaded.engine.context_length}: longer prompts are refused.",
            err=True,
        )
    typer.echo(welcome(names[0], address, bound_port, locked=bool(service.keys)))
    server.run([listener])
    service.workers.shutdown(wait=False, cancel_futures=True)
    books.settle()
    accounts.close()
    if server.interrupted:
        raise typer.Exit(130)


@dataclass(frozen=True)
class Accounts:
    """The databases of a server: what writes receipts (None: nothing does), the keys, and what each has spent."""

    writer: LedgerWriter | None
    ring: KeyRing
    spent: Callable[[str, float], Decimal]

    def close(self) -> None:
        """Commit what waits."""
        if self.writer is not None:
            self.writer.close()


def open_accounts(ledger: str | None, keys: str | None) -> Accounts:
    """Open the ledger (`none`: there is none) and read the keys, which are beside it unless `keys` says where."""
    from kvledger.cli.options import ledger_address
    from kvledger.ledger.database import Database
    from kvledger.ledger.keys import KeyRing, KeyStore
    from kvledger.ledger.store import Ledger
    from kvledger.ledger.writer import LedgerWriter

    database = None if ledger == "none" else Database(ledger_address(ledger))
    where = Database(keys, create=False) if keys else database
    ring = KeyStore(where).ring() if where else KeyRing()
    if database is None:
        return Accounts(None, ring, lambda name, since: Decimal(0))
    store = Ledger(database)
    return Accounts(LedgerWriter(store), ring, store.spent)


def parse_size(text: str, option: str) -> int:
    """Bytes meant by `512M`, `2GiB` or `1.5 g` (powers of 1,024); raises `InvalidRequestError` naming the option."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidRequestError(f"{option} is {text!r}, which is no size: write it like 512M or 2G.")
    return int(float(match["number"]) * 1024 ** " KMGT".index(match["unit"].upper() or " "))


def served_name(model: str) -> str:
    """The name that clients use: a model's own, or that of its file without folder and ending."""
    path = Path(model)
    return path.name.removesuffix(".gguf") if path.exists() else model


def welcome(name: str, address: str, port: int, *, locked: bool) -> str:
    """What to print once the server answers: where it is, and the first thing to try."""
    reachable = ipaddress.ip_address(address)
    if reachable.is_unspecified:
        reachable = ipaddress.ip_address("::1" if reachable.version == 6 else "127.0.0.1")
    url = f"http://{f'[{reachable}]' if reachable.version == 6 else reachable}:{port}/v1"
    messages = [{"role": "user", "content": "What is a KV cache?"}]
    body = json.dumps({"model": name, "messages": messages, "temperature": 0, "max_tokens": 100})
    key = " -H 'Authorization: Bearer YOUR_KEY'" if locked else ""
    return (
        f"kvledger serves {name} on {url} (Ctrl-C ends it). Try:\n"
        f"  curl {url}/chat/completions -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"
    )
