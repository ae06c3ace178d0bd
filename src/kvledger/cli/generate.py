"""`kvledger generate`: one prompt, one answer, no server."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvledger.cli.serve import CACHE_DISK, parse_size
from kvledger.engine.request import Finished, Request, Sampling, Usage
from kvledger.errors import InvalidRequestError
from kvledger.text.chat import Chat, Message
from kvledger.text.prompt import Prompt

if TYPE_CHECKING:
    from kvledger.engine.load import Loaded


def generate(
    prompt: Annotated[str, typer.Argument(help="What to say to the model.")],
    model: Annotated[str, typer.Option(help="A model's name, or the path of a GGUF file or a folder.")] = "smollm2",
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int, typer.Option(help="The most tokens to generate.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    cache_folder: Annotated[
        Path | None, typer.Option(help="Folder to keep KV in: a prompt that begins like an earlier one reuses it.")
    ] = None,
    cache_disk: Annotated[str, typer.Option(metavar="SIZE", help="The most to keep in that folder.")] = CACHE_DISK,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming text.")] = False,
) -> None:
    """Generate text from a prompt, and say on stderr what it took."""
    from kvledger.engine.load import EngineSettings, load_engine

    sampling = Sampling(temperature=temperature, seed=seed)
    disk_bytes = parse_size(cache_disk, "--cache-disk")
    settings = EngineSettings(model=model, max_running=1, cache_folder=cache_folder, cache_disk=disk_bytes)
    loaded = load_engine(settings, progress=note)
    request = Request("generate", _prompt(loaded, prompt, system, raw=raw), sampling=sampling, max_tokens=max_tokens)
    loaded.engine.start()
    text: list[str] = []
    finished: Finished | None = None
    try:
        for event in loaded.engine.generate(request):
            text.append(event.text)
            if isinstance(event, Finished):
                finished = event
            if not as_json:
                sys.stdout.write(event.text)
                sys.stdout.flush()
    finally:
        loaded.engine.close(drain=0.0)
    assert finished is not None, "an engine's last event is Finished"
    if as_json:
        typer.echo(json.dumps(_record(loaded.model_name, "".join(text), finished), ensure_ascii=False))
    else:
        sys.stdout.write("\n")
        note(account(finished.usage))
    if finished.message:
        note(finished.message)
        raise typer.Exit(1)


def account(usage: Usage) -> str:
    """One line: prompt, reuse, time to first token, and tokens per second of prefill and decode."""
    rates = _rates(usage)
    return (
        f"prompt {usage.prompt_tokens} tokens, {usage.reused_tokens} reused; output {usage.output_tokens};"
        f" first token after {usage.queued + usage.prefill:.3f} s; prefill {_shown(rates['prefill_tps'])},"
        f" decode {_shown(rates['decode_tps'])} tokens/s"
    )


def note(message: str) -> None:
    """A line for the person at the terminal, on stderr."""
    typer.echo(message, err=True)


def _prompt(loaded: Loaded, prompt: str, system: str | None, *, raw: bool) -> Prompt:
    if raw:
        if system is not None:
            raise InvalidRequestError("--system needs the chat template, which --raw leaves out: use one of them.")
        tokenizer = loaded.tokenizer
        start = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
        return Prompt((*start, *tokenizer.encode(prompt)))
    if loaded.template is None:
        raise InvalidRequestError(f"{loaded.model_name} has no chat template: use --raw to continue plain text.")
    messages = [] if system is None else [Message("system", system, "--system")]
    return loaded.template.render(Chat((*messages, Message("user", prompt, "prompt"))))


def _rates(usage: Usage) -> dict[str, float | None]:
    """Tokens per second; None where nothing was measured."""
    computed, decoded = usage.prompt_tokens - usage.reused_tokens, usage.output_tokens - 1
    return {
        "prefill_tps": computed / usage.prefill if usage.prefill > 0 else None,
        "decode_tps": decoded / usage.decode if usage.decode > 0 else None,
    }


def _shown(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def _record(model: str, text: str, finished: Finished) -> dict[str, Any]:
    usage = finished.usage
    return {
        "model": model,
        "text": text,
        "finish_reason": finished.reason.value,
        "prompt_tokens": usage.prompt_tokens,
        "reused_tokens": usage.reused_tokens,
        "output_tokens": usage.output_tokens,
        "ttft_s": usage.queued + usage.prefill,
        **_rates(usage),
    }
