"""What a workload costs at each provider, by replaying its requests through the provider's own rulebook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal

from kvledger.errors import PlanError
from kvledger.ledger.account import Split, Usage
from kvledger.ledger.money import total
from kvledger.ledger.prices import Prices
from kvledger.ledger.rates import Rates
from kvledger.plan.workload import Asked, Estimate, Workload, requests
from kvledger.providers.bodies import SYSTEM, Place, compose
from kvledger.providers.catalogue import rulebook, split_name
from kvledger.providers.entries import MemoryEntries
from kvledger.providers.history import History
from kvledger.providers.openai.editions import edition_of

MODELS = (
    "anthropic:claude-sonnet-5.5",
    "anthropic:claude-haiku-5.5",
    "anthropic:claude-opus-5.5",
    "openai:gpt-6.1-sol",
    "openai:gpt-6-luna",
    "openai:gpt-5.4",
    "gemini:gemini-3.8-flash",
    "gemini:gemini-3.1-pro-preview",
    "deepseek:deepseek-flash",
    "kimi:kimi-k3",
    "qwen:qwen-plus",
)
"""What is compared where no model is named: a small and a large one of the providers whose rules differ."""

Marks = Callable[[Asked], Mapping[Place, str]]

EARLIEST, LATEST = datetime(2024, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
"""No rulebook here knows anything of other times."""

_BEHIND = "behind the shared text and behind the conversation's own opening"
_LAST = "at the end of the last message"
_AUTOMATIC = {"cache_control": {"type": "ephemeral"}}
_EXPLICIT = {"prompt_cache_options": {"mode": "explicit"}}


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to use a provider's cache: which marks a request carries, further fields, and the tier it is billed in.

    `stored` keeps the shared text and the document in an explicit cache that is paid by the hour. `text` says where the
    marks are.
    """

    name: str
    marks: Marks
    text: str
    fields: Mapping[str, object] = field(default_factory=dict)
    tier: str = "standard"
    stored: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One model in one mode. Money is US dollars a month, None where a price is unknown (`unknown` says why).

    `saved_work` is the share of all prompt tokens that need not be computed before the first token. `certain` is False
    where a rule is best effort or not documented: `highest` is then the cost if the cache never served.
    """

    provider: str
    model: str
    mode: str
    requests: int
    text: str
    prompt_tokens: int
    read: int
    written: Mapping[str, int]
    output_tokens: int
    cost: Decimal | None
    uncached: Decimal | None
    highest: Decimal | None
    certain: bool
    unknown: tuple[str, ...] = ()

    @property
    def saved_work(self) -> float:
        return self.read / self.prompt_tokens

    @property
    def name(self) -> str:
        return f"{self.provider}:{self.model}"


@dataclass(frozen=True, slots=True)
class BreakEven:
    """From how many reads on a write pays for itself (`ttl`), or how many reads an hour pay for storage."""

    name: str
    what: str
    reads: int | None


@dataclass(frozen=True, slots=True)
class CostPlan:
    """The whole answer: all choices, the cheapest first; what writing and storing need to pay; and for the cheapest
    choice what other levers would do. `advice_holds` says whether the usual advice is confirmed for each model that
    it can be judged for."""

    workload: Workload
    choices: tuple[Choice, ...]
    break_evens: tuple[BreakEven, ...]
    levers: tuple[Lever, ...]
    advice_holds: Mapping[str, tuple[bool, Decimal]]

    @classmethod
    def of(cls, workload: Workload, names: Sequence[str], *, at: float) -> CostPlan:
        """Work everything out; raises what `compare` raises."""
        choices = compare(workload, names, at=at)
        return cls(
            workload,
            tuple(choices),
            tuple(break_evens(names, at=at)),
            tuple(_levers(workload, choices, at=at)),
            _judge_advice(workload, choices),
        )


@dataclass(frozen=True, slots=True)
class Lever:
    """Something else that could be done, and US dollars a month with it. None: it cannot be priced."""

    text: str
    cost: Decimal | None


def _nothing(_: Asked) -> Mapping[Place, str]:
    return {}


def _static(ttl: str) -> Marks:
    """Marks behind what stays: the shared text, and the conversation's own opening."""

    def marks(asked: Asked) -> dict[Place, str]:
        places = [(SYSTEM, len(asked.system) - 1)] if asked.system else []
        return dict.fromkeys([*places, *([(0, asked.stable - 1)] if asked.stable else [])], ttl)

    return marks


def _static_and_last(ttl: str, last: str) -> Marks:
    def marks(asked: Asked) -> dict[Place, str]:
        end = (len(asked.messages) - 1, len(asked.messages[-1].texts) - 1)
        return {**_static(ttl)(asked), end: last}

    return marks


def modes(rules: str, model: str, at: float) -> list[Mode]:
    """The ways that a provider's rules at `at` (seconds since the Unix epoch) leave open."""
    match rules:
        case "anthropic" | "bedrock" | "vertex-anthropic":
            return [
                Mode("no marks", _nothing, "nothing is cached"),
                Mode("automatic, 5m", _nothing, f"`cache_control` at the top: {_LAST}", _AUTOMATIC),
                Mode("static marks, 5m", _static("5m"), f"`cache_control` {_BEHIND}"),
                Mode("static marks, 1h", _static("1h"), f"`cache_control` {_BEHIND}, of one hour"),
                Mode("all marks, 5m", _static_and_last("5m", "5m"), f"`cache_control` {_BEHIND}, and {_LAST}"),
                Mode("all marks, 1h and 5m", _static_and_last("1h", "5m"), f"one hour {_BEHIND}, 5 minutes {_LAST}"),
            ]
        case "openai" | "azure" if edition_of(model, at).kind == "breakpoints":
            return [
                Mode("implicit, 30m", _nothing, f"no marks: the provider writes {_LAST}"),
                Mode("static marks, 30m", _static("30m"), f"`prompt_cache_breakpoint` {_BEHIND} only", _EXPLICIT),
                Mode("all marks, 30m", _static("30m"), f"`prompt_cache_breakpoint` {_BEHIND}, and {_LAST}"),
                Mode("all marks, 12h and 30m", _static("12h"), f"12 hours {_BEHIND}, 30 minutes {_LAST}"),
            ]
        case "gemini" | "vertex":
            return [
                Mode("implicit", _nothing, "the provider caches what it likes to"),
                Mode("explicit cache", _nothing, "`cachedContents` of what stays, paid by the hour", stored=True),
            ]
        case "qwen":
            return [
                Mode("implicit", _nothing, "the provider caches what it likes to"),
                Mode("static marks, 5m", _static("5m"), f"`cache_control` {_BEHIND}"),
                Mode("all marks, 5m", _static_and_last("5m", "5m"), f"`cache_control` {_BEHIND}, and {_LAST}"),
            ]
        case "kimi":
            return [
                Mode(f"automatic, {ttl}", _nothing, "no marks needed", {"prompt_cache_options": {"ttl": ttl}})
                for ttl in ("5m", "1h")
            ]
    return [Mode("automatic", _nothing, "no marks needed")]


def compare(workload: Workload, names: Sequence[str], *, at: float) -> list[Choice]:
    """Every model in every mode, the cheapest first, unknown prices last. `at` is when the workload begins.

    Raises `InvalidRequestError` with near names for an unknown provider or model, `PlanError` for a time without rules.
    """
    if not EARLIEST.timestamp() <= at < LATEST.timestamp():
        raise PlanError(f"Rules and prices are known from {EARLIEST:%Y-%m-%d} on, up to {LATEST:%Y-%m-%d}.")
    asked = list(requests(workload))
    found: list[Choice] = []
    for name in names:
        provider, model = split_name(name)
        for mode in modes(rulebook(provider.name).provider, model, at):
            found.append(replay(workload, asked, name, mode, at=at))
            if workload.batch:
                found.append(replay(workload, asked, name, replace(mode, tier="batch"), at=at))
    return sorted(found, key=lambda choice: (choice.cost is None, choice.cost or 0, -choice.saved_work))


def replay(workload: Workload, asked: Iterable[Asked], name: str, mode: Mode, *, at: float) -> Choice:
    """Send the requests through one provider's rulebook. What they write can be read once their response has begun."""
    provider, model = split_name(name)
    rules, prices, entries, history = rulebook(provider.name), Prices(), MemoryEntries(), History()
    costs: list[Decimal | None] = []
    uncached: list[Decimal | None] = []
    unknown: dict[str, None] = {}
    count = prompt_tokens = read = output = 0
    written: dict[str, int] = {}
    certain = True
    stored: dict[tuple[str, ...], int] = {}
    for each in asked:
        began = at + each.at
        body = compose(rules.provider, model, each.system, each.messages, mode.marks(each)) | dict(mode.fields)
        prompt = rules.prompt(body, scope="", counter=Estimate())
        if mode.stored:
            kept = (*each.system, *each.messages[0].texts[: each.stable])
            tokens = sum(Estimate().count(text) for text in kept)
            if kept not in stored:  # creating it is billed as input, once
                bill = prices.bill(provider.name, model, Usage(Split(tokens, fresh=tokens)), began)
                costs.append(bill.total)
                stored[kept] = tokens
            split = Split(prompt.tokens, read=min(tokens, prompt.tokens), fresh=max(0, prompt.tokens - tokens))
        else:
            verdict = rules.judge(prompt, entries, began, earlier=history.nearest(prompt))
            history.add(prompt)
            begun = began + workload.first_token_seconds
            entries.put((*verdict.renewed, *(replace(entry, readable_at=begun) for entry in verdict.written)))
            split, certain = verdict.account.split, certain and verdict.account.certain
        usage = Usage(split, output=workload.answer_tokens, service_tier=mode.tier)
        statement = prices.statement(provider.name, model, usage, began)
        costs.append(statement.cost.total)
        uncached.append(statement.uncached.total)
        unknown |= dict.fromkeys(statement.cost.unknown)
        count += 1
        prompt_tokens += split.prompt_tokens
        read += split.read
        output += usage.output
        for ttl, tokens in split.written.items():
            written[ttl] = written.get(ttl, 0) + tokens
    if stored:
        seconds = round(sum(stored.values()) * workload.hours * 3600)
        kept_usage = Usage(Split(0), storage_token_seconds=seconds)
        bill = prices.bill(provider.name, model, kept_usage, at)
        costs.append(bill.total)
        unknown |= dict.fromkeys(bill.unknown)
    plain = _monthly(uncached, workload)
    cost = _monthly(costs, workload)
    return Choice(
        provider=provider.name,
        model=model,
        mode=mode.name if mode.tier == "standard" else f"{mode.name}, {mode.tier}",
        requests=count,
        text=mode.text,
        prompt_tokens=prompt_tokens,
        read=read,
        written=written,
        output_tokens=output,
        cost=cost,
        uncached=plain,
        highest=cost if certain or not read else plain,
        certain=certain,
        unknown=tuple(unknown),
    )


def break_evens(names: Sequence[str], *, at: float) -> list[BreakEven]:
    """For each write fee, and for storage: how much reading pays for it.

    A write at w times the input price and n reads at r cost less than n + 1 uncached prompts from
    n > (w - 1) / (1 - r) on; storage for an hour pays from storage / (input - read) reads an hour on.
    """
    found: list[BreakEven] = []
    for name in names:
        provider, model = split_name(name)
        rates = Prices().rates(provider.name, model, Usage(Split(1, read=1)), at)
        if not isinstance(rates, Rates) or rates.read is None or rates.read >= rates.input:
            continue
        gain = rates.input - rates.read
        for ttl, fee in rates.writes.items():
            if fee > rates.input and ttl != "default":
                found.append(BreakEven(name, f"a {ttl} write", int((fee - rates.input) / gain) + 1))
        if rates.storage is not None:
            found.append(BreakEven(name, "an hour of storage", int(rates.storage / gain) + 1))
    return found


def compacted(workload: Workload, choice: Choice, *, at: float) -> tuple[int, int, Choice] | None:
    """The same with a long history summarised: from half of its final length down to a quarter of that. Returns the
    two token counts and the outcome; None for a history that never gets long."""
    longest = (workload.turns - 1) * (workload.question_tokens + workload.answer_tokens)
    compact_at, compact_to = longest // 2, longest // 8
    if workload.turns < 4 or not compact_to:
        return None
    asked = requests(workload, compact_at=compact_at, compact_to=compact_to)
    return compact_at, compact_to, replay(workload, asked, choice.name, _mode_of(choice, at), at=at)


def routed(workload: Workload, choice: Choice, other: Choice, *, at: float) -> Decimal | None:
    """US dollars a month if every second conversation goes to the model of `other`: each half warms its own cache."""
    asked = list(requests(workload))
    halves = (
        (choice, [each for each in asked if each.conversation % 2 == 0]),
        (other, [each for each in asked if each.conversation % 2]),
    )
    costs = [
        replay(workload, half, each.name, _mode_of(each, at), at=at).cost if half else Decimal(0)
        for each, half in halves
    ]
    return total([cost for cost in costs if cost is not None]) if None not in costs else None


def _levers(workload: Workload, choices: Sequence[Choice], *, at: float) -> list[Lever]:
    """What else could be done with the best choice of the dearest model that has a price."""
    priced = [choice for choice in choices if choice.cost is not None]
    if not priced:
        return []
    best_of = {choice.name: choice for choice in reversed(priced)}  # the first of each, since they are sorted
    dearest = max(best_of.values(), key=lambda choice: choice.cost or 0)
    cheapest = priced[0]
    found = []
    if (short := compacted(workload, dearest, at=at)) is not None:
        limit, summary, outcome = short
        text = f"summarise histories of more than {limit:,} tokens to {summary:,} ({dearest.name}, {dearest.mode})"
        found.append(Lever(text, outcome.cost))
    if cheapest.name != dearest.name and workload.num_conversations > 1:
        text = f"send every second conversation to {cheapest.name} instead of {dearest.name}"
        found.append(Lever(text, routed(workload, dearest, cheapest, at=at)))
    return found


def _judge_advice(workload: Workload, choices: Sequence[Choice]) -> dict[str, tuple[bool, Decimal]]:
    """For each model whether the advice holds, and the share that is really saved."""
    found: dict[str, tuple[bool, Decimal]] = {}
    if workload.advice is None:
        return found
    for name in dict.fromkeys(choice.name for choice in choices):
        mine = [choice for choice in choices if choice.name == name and choice.cost is not None]
        usual = [choice for choice in mine if not choice.mode.endswith(", batch")]
        batch = [choice for choice in mine if choice.mode.endswith(", batch")]
        if workload.advice.claim == "cache_saves" and usual and usual[0].uncached:
            saved = 1 - (usual[0].cost or 0) / usual[0].uncached
        elif workload.advice.claim == "batch_adds" and batch and usual and usual[0].cost:
            saved = 1 - (batch[0].cost or 0) / usual[0].cost
        else:
            continue
        found[name] = (saved >= Decimal(str(workload.advice.share)), saved)
    return found


def _mode_of(choice: Choice, at: float) -> Mode:
    rules = rulebook(choice.provider).provider
    name = choice.mode.removesuffix(", batch")
    mode = next(mode for mode in modes(rules, choice.model, at) if mode.name == name)
    return mode if name == choice.mode else replace(mode, tier="batch")


def _monthly(costs: Sequence[Decimal | None], workload: Workload) -> Decimal | None:
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    return (total(known) * Decimal(str(workload.months))).quantize(Decimal("0.000001"))
