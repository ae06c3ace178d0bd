"""`kvledger emulate`: providers' caches and bills for tests, without a model."""

from __future__ import annotations

from typing import Annotated

import typer


def emulate(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8100,
    persona: Annotated[
        str | None,
        typer.Option("--as", metavar="PROVIDER:MODEL", help="Answer every request as this model; else as it names."),
    ] = None,
    latency: Annotated[float, typer.Option(min=0.0, help="Seconds until an answer begins.")] = 0.0,
    gemini_drop: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of Gemini's implicit cache hits that are dropped.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Which of them.")] = 0,
) -> None:
    """Serve providers' APIs with a stand-in for the model, and a clock that a test moves.

    Only this machine can reach it. docs/emulator.md has the routes under /emulator and the pytest fixture.

    Example: kvledger emulate --port 8100 --as anthropic:claude-sonnet-5.5
    """
    from kvledger.api.server import Server, bind, listen
    from kvledger.testing.emulator import Emulator

    listener = bind("127.0.0.1", port)
    emulator = Emulator.create(persona=persona, latency=latency, gemini_drop=gemini_drop, seed=seed)
    server = Server(emulator.app, close_engine=emulator.close, drain=1.0)
    listen(listener)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    typer.echo(f"kvledger emulates providers on {url} (Ctrl-C ends it): OpenAI's base URL is {url}/v1, others' {url}.")
    server.run([listener])
    if server.interrupted:
        raise typer.Exit(130)
