"""`kvledger explain`: what the cache does, step by step, with the code that the server runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvledger.cli.plan import show

if TYPE_CHECKING:
    from kvledger.text.tokenizer import Tokenizer

explain = typer.Typer(help="Show step by step what the cache does.", no_args_is_help=True)

ModelName = Annotated[str, typer.Option("--model", help="A model's name, or the path of a GGUF file or a folder.")]
JsonTo = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': to standard output).")]
HtmlTo = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML file with charts.")]


@explain.callback()
def options() -> None:
    """Show step by step what the cache does."""


@explain.command()
def attention(
    demo: Annotated[
        bool, typer.Option("--demo", help="The worked example, which is also what there is without.")
    ] = True,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Work attention out by hand: three tokens, four dimensions, every number.

    kvledger explain attention --demo

    kvledger explain attention --json -
    """
    from kvledger.explain.attention import attention_page, attention_record

    show(attention_page, attention_record, json_to, html_to)


@explain.command()
def generate(
    text: Annotated[str, typer.Argument(help="What to continue; @FILE reads a file.")],
    model: ModelName = "smollm2",
    steps: Annotated[int, typer.Option(help="The most tokens to generate.")] = 12,
    layer: Annotated[
        int | None,
        typer.Option(help="The layer whose attention is drawn.  [default: the middle one]", show_default=False),
    ] = None,
    mode: Annotated[str, typer.Option(help="fast or exact, as for the server.")] = "fast",
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Generate on a real model with the cache and without, and show what each step computes, reads and keeps.

    kvledger explain generate "The cat sat on the"

    kvledger explain generate "The cat sat on the" --steps 24 --layer 3 --html generate.html
    """
    from kvledger.cli.generate import note
    from kvledger.clock import SystemClock
    from kvledger.explain.generation import generate as run
    from kvledger.explain.generation_page import generation_page, generation_record
    from kvledger.explain.pieces import read_text
    from kvledger.model.llama import LlamaModel
    from kvledger.model.store import resolve
    from kvledger.model.weights import load

    given = read_text(text)
    weights = load(resolve(model))
    tokenizer = weights.tokenizer
    start = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
    prompt = [*start, *tokenizer.encode(given)] if given else []
    generation = run(
        weights,
        LlamaModel(weights, mode=mode, progress=note),
        prompt,
        steps=steps,
        stop=tokenizer.eos_ids,
        layer=layer,
        clock=SystemClock(),
    )
    show(
        lambda: generation_page(generation, tokenizer, model),
        lambda: generation_record(generation, tokenizer),
        json_to,
        html_to,
    )


@explain.command()
def prefix(
    a: Annotated[str, typer.Argument(metavar="A", help="The earlier prompt; @FILE reads a file.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The later prompt; @FILE reads a file.")],
    model: ModelName = "smollm2",
    block_size: Annotated[int, typer.Option(help="Tokens of a block.")] = 16,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Show two prompts as chains of blocks, and where the second leaves the first.

    kvledger explain prefix @monday.txt @tuesday.txt

    kvledger explain prefix "You are kind. Today is Monday." "You are kind. Today is Tuesday." --block-size 4
    """
    from kvledger.explain.pieces import read_text
    from kvledger.explain.prefix import compare, prefix_page, prefix_record

    tokenizer = _tokenizer(model)
    comparison = compare(tokenizer, read_text(a), read_text(b), block_size=block_size)
    show(lambda: prefix_page(comparison, tokenizer), lambda: prefix_record(comparison, tokenizer), json_to, html_to)


@explain.command()
def chat(
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]", help="A conversation in JSON, as the chat APIs take it.  [default: an example]"
        ),
    ] = None,
    model: ModelName = "smollm2",
    gap: Annotated[float, typer.Option(help="Seconds from one request to the next.")] = 60.0,
    ttl: Annotated[float, typer.Option(help="Seconds that an unused block stays.")] = 300.0,
    bills: Annotated[
        list[str] | None,
        typer.Option(
            "--bill",
            metavar="PROVIDER:MODEL",
            help="Whose bill to work out; may be given several times.  [default: one model of each]",
            show_default=False,
        ),
    ] = None,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Replay a conversation turn by turn: tokens read, fresh and written, and what providers would charge.

    kvledger explain chat

    kvledger explain chat conversation.json --gap 400 --bill deepseek:deepseek-v4-flash --json -
    """
    from kvledger.clock import ManualClock, SystemClock
    from kvledger.explain.bill import MODELS, LocalCounter, bill_conversation
    from kvledger.explain.chat import EXAMPLE, read_conversation, replay
    from kvledger.explain.chat_page import chat_page, chat_record
    from kvledger.explain.pieces import read_text
    from kvledger.text.template import ChatTemplate

    messages = EXAMPLE if file is None else read_conversation(read_text(f"@{file}"), file)
    tokenizer = _tokenizer(model)
    clock = ManualClock()
    template = ChatTemplate(tokenizer.chat_template, tokenizer, clock=clock)
    turns = replay(tokenizer, template, messages, clock=clock, gap=gap, ttl=ttl)
    counter, now = LocalCounter(tokenizer), SystemClock().now()
    worked_out = [bill_conversation(name, turns, counter, at=now) for name in bills or MODELS]
    show(lambda: chat_page(turns, model, worked_out), lambda: chat_record(turns, worked_out), json_to, html_to)


@explain.command()
def bpe(
    text: Annotated[str, typer.Argument(help="The text to encode; @FILE reads a file.")] = "",
    model: ModelName = "smollm2",
    train: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Learn the merges from this text instead of a model's.")
    ] = None,
    merges: Annotated[int, typer.Option(help="How many merges to learn.")] = 20,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Encode a text merge by merge, or learn a tiny vocabulary step by step.

    kvledger explain bpe "unbelievable caching"

    kvledger explain bpe "the cat" --train text.txt --merges 30
    """
    from kvledger.errors import ExplainError
    from kvledger.explain.bpe import MergeTable, merge_word, split_words
    from kvledger.explain.bpe import train as learn
    from kvledger.explain.bpe_page import bpe_page, training_page, training_record, words_record
    from kvledger.explain.pieces import read_text

    table = MergeTable(_tokenizer(model))
    given = read_text(text)
    if train is not None:
        training = learn(split_words(table.backend, read_text(f"@{train}")), merges)
        known, ranks = training.ids, training.ranks
        words = [merge_word(word, tuple(word), ranks) for word in split_words(table.backend, given)]
        unknown = next((letter for word in words for letter in word.letters if letter not in known), None)
        if unknown is not None:
            raise ExplainError(
                f"The letter {unknown!r} does not stand in {train}: a vocabulary learnt there has no id for it."
            )
        ids = [[known[piece] for piece in word.pieces] for word in words]
        show(
            lambda: training_page(training, words),
            lambda: {"training": training_record(training), "words": words_record(words, ids)},
            json_to,
            html_to,
        )
        return
    if not given:
        raise ExplainError("There is nothing to encode: give a text, or a file to learn from with --train.")
    found = table.words(given)
    show(
        lambda: bpe_page(table, found, model),
        lambda: {"model": model, "words": words_record(found, [table.ids(word) for word in found])},
        json_to,
        html_to,
    )


def _tokenizer(model: str) -> Tokenizer:
    from kvledger.cli.tokens import load_tokenizer

    return load_tokenizer(model)
