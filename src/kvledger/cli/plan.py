"""`kvledger plan`: memory and money, before anything is bought."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from kvledger.plan.memory import MemoryPlan

plan = typer.Typer(help="Work out memory and money before anything is bought.", no_args_is_help=True)

ModelName = Annotated[
    str,
    typer.Option("--model", metavar="NAME|FILE", help="A name in the catalogue, a config.json, or a .gguf file."),
]
Context = Annotated[int, typer.Option(help="Tokens of one request, prompt and answer together.")]
KvDtype = Annotated[str, typer.Option(help="fp16, bf16, fp32, fp8, int8, int4, q8_0 or q4_0.")]
WeightDtype = Annotated[
    str | None,
    typer.Option(help="fp16, bf16, fp32, fp8, int8, int4 or mxfp4.  [default: as published]", show_default=False),
]
Gpus = Annotated[int, typer.Option(help="How many of them the model is spread over.")]
Utilization = Annotated[float, typer.Option(help="Share of the accelerator's memory that may be used.")]
StepTokens = Annotated[int, typer.Option(help="The most tokens computed in one step.")]
JsonTo = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write JSON ('-': to standard output).")]
HtmlTo = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write one HTML file with charts.")]


@plan.callback()
def options() -> None:
    """Work out memory and money before anything is bought."""


@plan.command()
def memory(
    model: ModelName,
    context: Context = 8192,
    concurrency: Annotated[int, typer.Option(help="Requests at once.")] = 1,
    kv_dtype: KvDtype = "fp16",
    weight_dtype: WeightDtype = None,
    gpu: Annotated[str | None, typer.Option(metavar="NAME", help="An accelerator, such as h100-80gb.")] = None,
    gpus: Gpus = 1,
    utilization: Utilization = 0.9,
    step_tokens: StepTokens = 2048,
    reserve: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="What contiguous allocation sets aside for a request.  [default: the model's context length]",
            show_default=False,
        ),
    ] = None,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Say what weights, keys and values take, and how many requests fit.

    kvledger plan memory --model llama-3-70b --context 8192 --concurrency 32 --gpu h100-80gb --gpus 4

    kvledger plan memory --model config.json --kv-dtype fp8 --context 131072 --json -

    kvledger plan memory --model model.gguf --context 4096 --html memory.html
    """
    from kvledger.plan.report import memory_page, memory_record

    worked_out = _memory_plan(
        model, context, concurrency, kv_dtype, weight_dtype, gpu, gpus, utilization, step_tokens, reserve
    )
    show(lambda: memory_page(worked_out), lambda: memory_record(worked_out), json_to, html_to)


@plan.command()
def gpu(
    model: ModelName,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="An accelerator, such as h100-80gb.")],
    price_per_hour: Annotated[
        str | None, typer.Option(metavar="AMOUNT", help="Of one accelerator, in the currency of the answer.")
    ] = None,
    context: Annotated[
        int, typer.Option(help="Tokens of a prompt, and those behind which answers are decoded.")
    ] = 8192,
    cached: Annotated[
        int | None,
        typer.Option(help="How many of them are in the cache.  [default: nine tenths]", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Answers decoded at once.  [default: as many as fit]", show_default=False),
    ] = None,
    gpus: Gpus = 1,
    kv_dtype: KvDtype = "fp16",
    weight_dtype: WeightDtype = None,
    efficiency: Annotated[float, typer.Option(help="Share of peak rate and bandwidth that is reached.")] = 1.0,
    utilization: Utilization = 0.9,
    step_tokens: StepTokens = 2048,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Say what input, cached input and output tokens cost on an accelerator, by its roofline.

    kvledger plan gpu --model llama-3-8b --gpu h100-80gb --price-per-hour 2.50

    kvledger plan gpu --model deepseek-v3 --gpu h200-141gb --gpus 8 --price-per-hour 3 --context 32768 --json -
    """
    from kvledger.plan.gpu import GpuPlan
    from kvledger.plan.gpu_report import gpu_page, gpu_record

    worked_out = GpuPlan(
        _memory_plan(model, context, 1, kv_dtype, weight_dtype, gpu, gpus, utilization, step_tokens, None),
        price_per_hour=None if price_per_hour is None else _amount(price_per_hour),
        cached=cached,
        batch=batch,
        efficiency=efficiency,
    )
    show(lambda: gpu_page(worked_out), lambda: gpu_record(worked_out), json_to, html_to)


@plan.command()
def cost(
    workload: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="A workload of your own; docs/plan.md has the fields.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(metavar="NAME", help="support-bot, doc-qa, agent or few-shot-batch.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROVIDER:MODEL", help="What to compare; repeatable.  [default: a choice of all providers]"
        ),
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="DATE", help="Rules and prices of this day.  [default: today]")
    ] = None,
    json_to: JsonTo = None,
    html_to: HtmlTo = None,
) -> None:
    """Say what a workload costs a month at each provider, in each way to use its cache.

    kvledger plan cost --preset support-bot

    kvledger plan cost --preset agent --model anthropic:claude-sonnet-5.5 --model openai:gpt-6.1-sol

    kvledger plan cost --workload mine.toml --at 2026-11-30 --json -
    """
    from kvledger.cli.options import moment
    from kvledger.errors import PlanError
    from kvledger.plan.cost import MODELS, CostPlan
    from kvledger.plan.cost_report import cost_page, cost_record
    from kvledger.plan.workload import preset as preset_named
    from kvledger.plan.workload import preset_names, read_workload

    if workload is not None and preset is not None:
        raise PlanError("--workload and --preset were both given: leave one of them out.")
    if workload is None and preset is None:
        raise PlanError(f"Give --workload FILE.toml, or --preset with one of {', '.join(preset_names())}.")
    asked = read_workload(workload) if workload else preset_named(preset or "")
    worked_out = CostPlan.of(asked, model or MODELS, at=moment(at, "--at"))
    show(lambda: cost_page(worked_out), lambda: cost_record(worked_out), json_to, html_to)


@plan.command()
def models() -> None:
    """List the models of the catalogue."""
    from kvledger.page.blocks import Page, Table
    from kvledger.page.terminal import show as show_page
    from kvledger.plan.catalog import models
    from kvledger.plan.models import find_model

    shapes = [find_model(name) for name in models()]
    rows = [
        (
            shape.name,
            f"{shape.parameters / 1e9:,.2f}",
            f"{shape.context_length:,}",
            f"{shape.kv_bytes_per_token('fp16'):,}",
            ", ".join(dict.fromkeys(run.mixer.kind for run in shape.layers)),
        )
        for shape in shapes
    ]
    columns = ("model", "10^9 parameters", "context", "fp16 bytes/token", "layers")
    show_page(Page("Models", [Table(columns, rows, numeric=(1, 2, 3))]))


@plan.command()
def gpus() -> None:
    """List the accelerators of the catalogue."""
    from kvledger.page.blocks import Page, Table
    from kvledger.page.terminal import show as show_page
    from kvledger.plan.catalog import accelerators

    rows = [
        (
            each.name,
            f"{each.memory / 1e9:.0f}",
            f"{each.bandwidth / 1e9:,.0f}",
            ", ".join(f"{dtype} {flops / 1e12:,.0f}" for dtype, flops in each.flops.items()),
            each.source,
        )
        for each in accelerators().values()
    ]
    show_page(Page("Accelerators", [Table(("name", "GB", "GB/s", "TFLOP/s", "source"), rows, numeric=(1, 2))]))


def show(page: Any, record: Any, json_to: Path | None, html_to: Path | None) -> None:
    """Write what is asked for; a page on the terminal where nothing is. `page` and `record` make them when called."""
    if json_to is not None:
        text = json.dumps(record(), indent=2, ensure_ascii=False)
        if json_to == Path("-"):
            typer.echo(text)
        else:
            json_to.write_text(text + "\n", encoding="utf-8")
    if html_to is not None:
        from kvledger.page.html import write

        write(page(), html_to)
        typer.echo(f"wrote {html_to}", err=True)
    if json_to is None and html_to is None:
        from kvledger.page.terminal import show as show_page

        show_page(page())


def _memory_plan(
    model: str,
    context: int,
    concurrency: int,
    kv_dtype: str,
    weight_dtype: str | None,
    gpu: str | None,
    gpus: int,
    utilization: float,
    step_tokens: int,
    reserve: int | None,
) -> MemoryPlan:
    from kvledger.plan import dtypes
    from kvledger.plan.catalog import catalogued_accelerator
    from kvledger.plan.memory import MemoryPlan
    from kvledger.plan.models import find_model

    return MemoryPlan(
        find_model(model),
        context,
        concurrency,
        dtypes.kv_dtype(kv_dtype),
        None if weight_dtype is None else dtypes.weight_dtype(weight_dtype),
        None if gpu is None else catalogued_accelerator(gpu),
        gpus,
        utilization,
        step_tokens,
        reserve,
    )


def _amount(text: str) -> Decimal:
    from kvledger.errors import PlanError

    try:
        return Decimal(text)
    except InvalidOperation:
        raise PlanError(f"--price-per-hour is {text!r}: an amount such as 2.50 is needed.") from None
