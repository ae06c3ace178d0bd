"""Prices against tables worked out by hand: rate x tokens / 1,000,000, each in decimals."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.ledger.account import Split, Usage
from kvledger.ledger.bill import LineKind
from kvledger.ledger.overlay import load_overlay, matches, model_key
from kvledger.ledger.prices import Unknown
from kvledger.ledger.rates import Rates
from kvledger.providers.catalogue import PROVIDERS
from tests.ledger.samples import PRICES, at, used

NOVEMBER = at("2026-11-12T12:00")
APRIL = at("2026-04-20T12:00")

# provider, model, input, cache read, writes, output: US$ per million tokens, of 2026-11-12 (facts of 2026-11-30).
SHEET = [
    ("anthropic", "claude-fable-5-2", "8", "0.20", {"5m": "10", "1h": "16"}, "40"),
    ("anthropic", "claude-mythos-5-2", "8", "0.20", {"5m": "10", "1h": "16"}, "40"),
    ("anthropic", "claude-fable-5-1", "10", "0.25", {"5m": "12.50", "1h": "20"}, "50"),
    ("anthropic", "claude-mythos-5-1", "10", "0.25", {"5m": "12.50", "1h": "20"}, "50"),
    ("anthropic", "claude-fable-5", "10", "1", {"5m": "12.50", "1h": "20"}, "50"),
    ("anthropic", "claude-mythos-5", "10", "1", {"5m": "12.50", "1h": "20"}, "50"),
    ("anthropic", "claude-opus-5-5", "4", "0.20", {"5m": "5", "1h": "8"}, "20"),
    ("anthropic", "claude-opus-5", "5", "0.50", {"5m": "6.25", "1h": "10"}, "25"),
    ("anthropic", "claude-opus-4-5-20251101", "5", "0.50", {"5m": "6.25", "1h": "10"}, "25"),
    ("anthropic", "claude-opus-4-1", "15", "1.50", {"5m": "18.75", "1h": "30"}, "75"),
    ("anthropic", "claude-sonnet-5-5", "2", "0.10", {"5m": "2.50", "1h": "4"}, "10"),
    ("anthropic", "claude-sonnet-5.5", "2", "0.10", {"5m": "2.50", "1h": "4"}, "10"),
    ("anthropic", "claude-sonnet-5", "2", "0.20", {"5m": "2.50", "1h": "4"}, "10"),
    ("anthropic", "claude-sonnet-4-5-20250929", "3", "0.30", {"5m": "3.75", "1h": "6"}, "15"),
    ("anthropic", "claude-haiku-5-5", "0.10", "0.01", {"5m": "0.125", "1h": "0.20"}, "0.50"),
    ("anthropic", "claude-3-haiku-20240307", "0.25", "0.03", {"5m": "0.30", "1h": "0.50"}, "1.25"),
    ("openai", "gpt-6.2-sol", "2", "0.10", {"30m": "2.50", "12h": "5"}, "10"),
    ("openai", "gpt-6.1-sol", "2", "0.10", {"30m": "2.50", "12h": "5"}, "10"),
    ("openai", "gpt-6.1-terra", "1", "0.05", {"30m": "1.25", "12h": "2.50"}, "5"),
    ("openai", "gpt-6-sol", "2", "0.20", {"30m": "2.50"}, "10"),
    ("openai", "gpt-6-luna", "0.10", "0.01", {"30m": "0.125"}, "0.50"),
    ("openai", "gpt-6-astra", "10", "1", {"30m": "12.50"}, "50"),
    ("openai", "gpt-5.6-sol", "4", "0.40", {"30m": "5"}, "20"),
    ("openai", "gpt-5.6-terra", "2", "0.20", {"30m": "2.50"}, "12"),
    ("openai", "gpt-5.6-luna", "0.20", "0.02", {"30m": "0.25"}, "1.20"),
    ("openai", "gpt-5.5", "5", "0.50", {}, "30"),
    ("openai", "gpt-5.4-mini", "0.75", "0.075", {}, "4.50"),
    ("openai", "gpt-5.2", "1.75", "0.175", {}, "14"),
    ("openai", "gpt-4.1", "2", "0.50", {}, "8"),
    ("openai", "gpt-4o", "2.50", "1.25", {}, "10"),
    ("openai", "o4-mini", "1.10", "0.275", {}, "4.40"),
    ("gemini", "gemini-2.5-pro", "1.25", "0.125", {}, "10"),
    ("google", "models/gemini-3.1-pro-preview", "2", "0.20", {}, "12"),
    ("gemini", "gemini-3.8-flash", "0.75", "0.075", {}, "3.75"),
    ("gemini", "gemini-4-argon", "2", "0.10", {}, "10"),
    ("deepseek", "deepseek-v4-pro", "0.66", "0.022", {}, "1.98"),
    ("kimi", "kimi-k3", "3", "0.30", {"5m": "3", "1h": "6"}, "15"),
    ("moonshot", "kimi-k3.1-pro", "2", "0.20", {"5m": "2", "1h": "4"}, "10"),
    ("kimi", "kimi-k2.6", "0.95", "0.16", {"5m": "0.95", "1h": "0.95"}, "4"),
    ("zai", "GLM-5.2", "1.40", "0.26", {}, "4.40"),
    ("xai", "grok-4.7", "2", "0.50", {}, "6"),
    ("xai", "grok-4.3", "1.25", "0.20", {}, "2.50"),
    ("groq", "gpt-oss-120b", "0.15", "0.075", {}, "0.60"),
    ("mistral", "mistral-large-latest", "0.50", "0.05", {}, "1.50"),
    ("qwen", "qwen-max", "1.60", "0.32", {}, "6.40"),
    ("dashscope", "qwen3.7-max", "2.50", "0.50", {}, "7.50"),
]


def rate_of(provider: str, model: str, usage: Usage, when: float) -> Rates:
    found = PRICES.rates(provider, model, usage, when)
    assert isinstance(found, Rates), found
    return found


def cost(provider: str, model: str, usage: Usage, when: float = NOVEMBER) -> str:
    bill = PRICES.bill(provider, model, usage, when)
    assert bill.total is not None, bill.unknown
    return format(bill.total, "f")


@pytest.mark.parametrize(("provider", "model", "input", "read", "writes", "output"), SHEET, ids=str)
def test_the_price_sheet(provider, model, input, read, writes, output):
    usage = used(1, 1, read=1, written=dict.fromkeys(writes, 1))
    rates = rate_of(provider, model, usage, NOVEMBER)
    found = {ttl: rates.writes[ttl] for ttl in writes}
    expected = Decimal(input), Decimal(read), Decimal(output), {ttl: Decimal(rate) for ttl, rate in writes.items()}
    # An explicit cache of Qwen's is read at another price: its reads are asked for without writes above.
    assert (rates.input, rates.read, rates.output, found) == expected


# Dated prices: a request is priced by its day. until the last second of a price, and from its first.
DATED = [
    ("anthropic", "claude-sonnet-5-5", "2026-10-06T23:59:59", "read", "0.20"),
    ("anthropic", "claude-sonnet-5-5", "2026-10-07T00:00:00", "read", "0.10"),
    ("openai", "gpt-5.6-sol", "2026-08-20T23:59:59", "output", "30"),
    ("openai", "gpt-5.6-sol", "2026-08-21T00:00:00", "output", "20"),
    ("openai", "gpt-5.6-luna", "2026-07-29T12:00:00", "input", "1"),
    ("openai", "gpt-5.6-luna", "2026-07-30T12:00:00", "input", "0.20"),
    ("gemini", "gemini-4-argon", "2026-11-30T23:59:59", "input", "2"),
    ("gemini", "gemini-4-argon", "2026-12-01T00:00:00", "input", "4"),
    ("gemini", "gemini-3.8-flash", "2027-01-01T00:00:00", "read", "0.15"),
    ("gemini", "gemini-3.8-flash", "2026-12-31T23:59:59", "storage", "0.50"),
    ("gemini", "gemini-3.8-flash", "2027-01-01T00:00:00", "storage", "1.00"),
    ("deepseek", "deepseek-v4-flash", "2026-04-20T02:00:00", "input", "0.14"),
    ("deepseek", "deepseek-v4-flash", "2026-08-16T15:59:59", "input", "0.14"),
    ("deepseek", "deepseek-v4-flash", "2026-08-16T16:00:00", "input", "0.22"),
    ("deepseek", "deepseek-v4-flash", "2026-09-09T16:00:00", "input", "0.15"),
    ("deepseek", "deepseek-v4-pro", "2026-04-20T02:00:00", "output", "0.87"),
    ("mistral", "mistral-large-latest", "2025-12-01T00:00:00", "output", "6"),
    ("mistral", "mistral-large-latest", "2025-12-02T00:00:00", "output", "1.50"),
]


@pytest.mark.parametrize(("provider", "model", "when", "name", "expected"), DATED)
def test_prices_of_the_day(provider, model, when, name, expected):
    assert getattr(rate_of(provider, model, used(1, 1, read=1), at(when)), name) == Decimal(expected)


# DeepSeek's peak: 01:00-04:00 and 06:00-10:00 UTC, Monday to Friday by the Beijing calendar, no public holidays.
PEAK = {
    "2026-11-17T00:59:59": "0.15",  # Tuesday
    "2026-11-17T01:00:00": "0.30",
    "2026-11-17T03:59:59": "0.30",
    "2026-11-17T04:00:00": "0.15",
    "2026-11-17T06:00:00": "0.30",
    "2026-11-17T10:00:00": "0.15",
    "2026-11-21T02:30:00": "0.15",  # Saturday
    "2026-11-22T07:00:00": "0.15",  # Sunday
    "2026-10-01T02:00:00": "0.15",  # National Day, a Thursday
    "2026-10-08T02:00:00": "0.30",
    "2026-11-17T09:00:00+07:00": "0.30",  # 02:00 UTC
}


@pytest.mark.parametrize(("when", "expected"), PEAK.items())
def test_deepseek_peak_hours(when, expected):
    assert rate_of("deepseek", "deepseek-flash", used(1, 1), at(when)).input == Decimal(expected)


def test_deepseek_weekends_were_peak_in_the_first_week():
    assert rate_of("deepseek", "deepseek-v4-pro", used(1, 1), at("2026-08-22T02:00")).input == Decimal("1.32")
    assert rate_of("deepseek", "deepseek-v4-pro", used(1, 1), at("2026-08-23T02:00")).input == Decimal("0.66")


def test_a_peak_price_beyond_the_known_holidays_is_uncertain():
    assert rate_of("deepseek", "deepseek-flash", used(1, 1), at("2026-11-17T02:00")).confidence == "A"
    assert rate_of("deepseek", "deepseek-flash", used(1, 1), at("2027-02-16T02:00")).confidence == "C"


# Tiers of prompt length hold for the whole request, output too. Prompt, output -> dollars.
TIERS = [
    ("openai", "gpt-6.2-sol", 272_000, 1_000, "0.554"),  # 272,000 x 2 + 1,000 x 10
    ("openai", "gpt-6.2-sol", 272_001, 1_000, "1.103004"),  # 272,001 x 4 + 1,000 x 15
    ("openai", "gpt-5.4", 272_001, 1_000, "1.382505"),  # 272,001 x 5 + 1,000 x 22.5
    ("openai", "gpt-5.4-mini", 272_001, 1_000, "0.20850075"),  # 272,001 x 0.75 + 1,000 x 4.5: no tier
    ("gemini", "gemini-2.5-pro", 200_000, 1_000, "0.26"),  # 200,000 x 1.25 + 1,000 x 10
    ("gemini", "gemini-2.5-pro", 200_001, 1_000, "0.5150025"),  # 200,001 x 2.5 + 1,000 x 15
    ("xai", "grok-4.7", 199_999, 1_000, "0.405998"),  # 199,999 x 2 + 1,000 x 6
    ("xai", "grok-4.7", 200_000, 1_000, "0.812"),  # from 200,000 on: 200,000 x 4 + 1,000 x 12
    ("anthropic", "claude-opus-4-8", 900_000, 1_000, "4.525"),  # flat: 900,000 x 5 + 1,000 x 25
    ("qwen", "qwen3-max", 32_000, 1_000, "0.0444"),  # 32,000 x 1.2 + 1,000 x 6
    ("qwen", "qwen3-max", 32_001, 1_000, "0.0888024"),  # 32,001 x 2.4 + 1,000 x 12
    ("qwen", "qwen3-max", 128_001, 1_000, "0.399003"),  # 128,001 x 3 + 1,000 x 15
]


@pytest.mark.parametrize(("provider", "model", "prompt", "output", "expected"), TIERS)
def test_whole_request_tiers(provider, model, prompt, output, expected):
    assert cost(provider, model, used(prompt, output)) == expected


def test_a_tier_counts_what_was_read_and_written():
    # 272,001 tokens: 1 x 4 + 272,000 x 0.20 + 0 output; and 2,001 written for 12 h at 2.5 x 4.
    assert cost("openai", "gpt-6.1-sol", used(1, read=272_000)) == "0.054404"
    assert cost("openai", "gpt-6.1-sol", used(read=270_000, written={"12h": 2_001})) == "0.07401"


def test_the_long_context_premium_of_april_and_before_march():
    usage = used(200_001, 1_000)
    assert cost("anthropic", "claude-opus-4-6", usage, at("2026-03-12T23:00")) == "2.03751"  # x 10 + 1,000 x 37.5
    assert cost("anthropic", "claude-opus-4-6", usage, APRIL) == "1.025005"  # x 5 + 1,000 x 25


# Service tiers, regions, speed. 1,000 fresh, 1,000 read, 1,000 out.
MODIFIED = [
    ("anthropic", "claude-opus-5-5", {"service_tier": "batch"}, NOVEMBER, "0.0121"),  # (4 + 0.2 + 20) / 2
    ("anthropic", "claude-opus-4-5", {"service_tier": "batch"}, APRIL, "0.01525"),  # (5 + 0.5 + 25) / 2
    ("anthropic", "claude-opus-5-5", {"region": "us"}, NOVEMBER, "0.02662"),  # 24.2 x 1.1
    ("anthropic", "claude-opus-5-5", {"region": "global"}, NOVEMBER, "0.0242"),
    ("anthropic", "claude-opus-4-5", {"region": "us"}, NOVEMBER, "0.0305"),  # before 4.6: no premium
    ("anthropic", "claude-opus-5-5", {"service_tier": "batch", "region": "us"}, NOVEMBER, "0.01331"),
    ("anthropic", "claude-opus-5-5", {"speed": "fast"}, NOVEMBER, "0.0484"),  # 8 + 0.4 + 40
    ("anthropic", "claude-sonnet-5-5", {"service_tier": "batch"}, at("2026-10-01"), "0.0061"),  # (2 + 0.2 + 10) / 2
    ("anthropic", "claude-mythos-5-1", {"service_tier": "batch"}, NOVEMBER, "0.030125"),  # (10 + 0.25 + 50) / 2
    ("openai", "gpt-6.2-sol", {"service_tier": "batch"}, NOVEMBER, "0.00605"),  # (2 + 0.1 + 10) / 2
    ("openai", "gpt-6.2-sol", {"service_tier": "flex", "region": "eu"}, NOVEMBER, "0.006655"),
    ("openai", "gpt-6.2-sol", {"service_tier": "priority"}, NOVEMBER, "0.0242"),
    ("openai", "gpt-5.5", {"service_tier": "priority"}, NOVEMBER, "0.08875"),  # 2.5 x (5 + 0.5 + 30)
    ("openai", "gpt-5.5", {"service_tier": "priority"}, at("2026-06-01"), "0.08875"),
    ("openai", "gpt-5.2", {"service_tier": "batch"}, APRIL, "0.0079625"),  # (1.75 + 0.175 + 14) / 2
    ("openai", "gpt-5.2", {"region": "eu"}, NOVEMBER, "0.015925"),  # released before 2026-03-05
    ("openai", "gpt-4.1", {"service_tier": "batch"}, APRIL, "0.0055"),  # 1 + 0.5 (stays) + 4
    ("gemini", "gemini-2.5-pro", {"service_tier": "batch"}, APRIL, "0.00575"),  # 0.625 + 0.125 (stays) + 5
    ("gemini", "gemini-2.5-pro", {"service_tier": "flex"}, NOVEMBER, "0.00575"),
    ("gemini", "gemini-3.8-flash", {"service_tier": "batch"}, NOVEMBER, "0.0022875"),  # (0.75 + 0.075 + 3.75) / 2
    ("gemini", "gemini-3.8-flash", {"service_tier": "priority"}, NOVEMBER, "0.008235"),  # x 1.8
    ("xai", "grok-4.7", {"service_tier": "priority", "region": "us"}, NOVEMBER, "0.0187"),  # 8.5 x 2 x 1.1
    ("xai", "grok-4.3", {"service_tier": "batch"}, NOVEMBER, "0.00316"),  # 3.95 x 0.8
    ("groq", "gpt-oss-120b", {"service_tier": "batch"}, NOVEMBER, "0.00045"),  # 0.075 + 0.075 + 0.3
    ("google-cloud", "claude-opus-5-5", {"region": "us-east5"}, NOVEMBER, "0.02662"),
]


@pytest.mark.parametrize(("provider", "model", "dimensions", "when", "expected"), MODIFIED)
def test_service_tier_region_and_speed(provider, model, dimensions, when, expected):
    assert cost(provider, model, used(1_000, 1_000, read=1_000, **dimensions), when) == expected


def test_writes_of_twelve_hours_in_a_batch_are_halved_too():
    assert cost("openai", "gpt-6.1-sol", used(written={"12h": 1_000}, service_tier="batch")) == "0.0025"


def test_a_write_without_a_lifetime_takes_the_default_one():
    assert cost("anthropic", "claude-sonnet-5-5", used(written={"default": 1_000})) == "0.0025"
    assert cost("openai", "gpt-6-sol", used(written={"default": 1_000})) == "0.0025"


def test_explicit_caches_of_qwen_are_read_at_half_the_implicit_price():
    assert cost("qwen", "qwen-max", used(read=1_000)) == "0.00032"
    assert cost("qwen", "qwen-max", used(read=1_000, cache_mode="explicit")) == "0.00016"
    assert cost("qwen", "qwen-max", used(read=1_000, written={"5m": 1_000})) == "0.00216"  # 0.16 + 1.6 x 1.25


def test_a_qwen_that_thought_pays_more_for_all_its_output():
    assert cost("qwen", "qwen-plus", used(1_000, 1_000)) == "0.0016"
    assert cost("qwen", "qwen-plus", used(1_000, 1_000, reasoning=10)) == "0.0044"


def test_storage_is_billed_by_token_seconds():
    # 12,000 tokens for 1.5 hours at 4.50: 12,000 x 5,400 / 3,600 x 4.5 / 1,000,000.
    bill = PRICES.bill("gemini", "gemini-2.5-pro", used(storage_token_seconds=12_000 * 5_400), NOVEMBER)
    assert bill.usd(LineKind.STORAGE) == bill.total == Decimal("0.081")
    assert [(line.kind, line.tokens) for line in bill.lines] == [(LineKind.STORAGE, 18_000)]
    # A batch halves what a request uses, not what a cache costs by the hour.
    batch = used(storage_token_seconds=12_000 * 5_400, service_tier="batch")
    assert cost("gemini", "gemini-3.5-flash-lite", used(1, service_tier="batch")) == "0.00000015"
    assert cost("gemini", "gemini-2.5-pro", batch) == "0.081"


UNKNOWN = [
    ("antropic", "claude-sonnet-5-5", {}, "no provider is called antropic", "anthropic"),
    ("anthropic", "claude-sonet-5-5", {}, "anthropic has no model claude-sonet-5-5", "claude-sonnet-5-5"),
    ("openai", "gpt-7-sol", {}, "openai has no model gpt-7-sol", "gpt-6-sol"),
    ("anthropic", "claude-opus-5", {"service_tier": "priority"}, "no priority price", None),
    ("anthropic", "claude-sonnet-5", {"speed": "fast"}, "at speed fast", None),
    ("anthropic", "claude-opus-5", {"speed": "fast", "service_tier": "batch"}, "inside a batch", None),
    ("deepseek", "deepseek-flash", {"region": "eu"}, "in region eu", None),
    ("xai", "grok-4.7", {"service_tier": "batch"}, "no batch price", None),
]


@pytest.mark.parametrize(("provider", "model", "dimensions", "reason", "near"), UNKNOWN)
def test_an_unknown_price_is_said_and_never_zero(provider, model, dimensions, reason, near):
    bill = PRICES.bill(provider, model, used(10, 5, read=3, **dimensions), NOVEMBER)
    assert bill.total is None
    assert reason in bill.reason
    assert bill.unknown == (bill.reason,)
    assert all(line.usd is None and line.rate is None for line in bill.lines)
    assert all(bill.usd(kind) is None for kind in LineKind)
    assert near is None or near in bill.near


def test_one_unknown_line_leaves_the_others_known():
    bill = PRICES.bill("openai", "gpt-4-turbo", used(1_000, 1_000, read=1_000), NOVEMBER)
    assert bill.usd(LineKind.CACHE_READ) is None
    assert bill.total is None
    assert (bill.usd(LineKind.INPUT), bill.usd(LineKind.OUTPUT)) == (Decimal("0.01"), Decimal("0.03"))
    assert bill.unknown == ("no cache read price is known of openai's gpt-4-turbo",)
    assert PRICES.bill("openai", "gpt-5.5", used(written={"30m": 1}), NOVEMBER).total is None
    assert PRICES.bill("gemini", "gemini-3.5-flash", used(storage_token_seconds=1), NOVEMBER).total is None


def test_p27_cache_writes_are_billed_once():
    """https://github.com/BerriAI/litellm/issues/9812"""
    usage = used(3, 550, written={"5m": 12_304})
    assert cost("anthropic", "claude-3-7-sonnet-20250219", usage, at("2025-04-08")) == "0.054399"  # not 0.091311


def test_p28_cached_tokens_are_part_of_an_inclusive_prompt():
    """https://github.com/Arize-ai/openinference/pull/3016 and https://github.com/langfuse/langfuse/issues/5568"""
    usage = Usage(Split(9_126, read=4_864, fresh=4_262), 3_197)
    assert cost("openai", "gpt-5", usage, at("2025-10-26")) == "0.0379055"  # not 0.0439855


def test_the_statement_sets_three_bills_side_by_side():
    usage = used(5_110, 300, read=14_000, written={"5m": 10_500})
    best = Split(29_610, read=20_000, written={"5m": 9_610})
    statement = PRICES.statement("anthropic", "claude-sonnet-4", usage, NOVEMBER, best)
    assert statement.cost.total == Decimal("0.063405")
    assert statement.uncached.total == Decimal("0.09333")  # (29,610 x 3 + 300 x 15) / 1,000,000
    assert statement.best is not None
    assert statement.best.total == Decimal("0.0465375")  # (20,000 x 0.3 + 9,610 x 3.75 + 300 x 15) / 1,000,000
    assert (statement.saved, statement.missed) == (Decimal("0.029925"), Decimal("0.0168675"))
    with pytest.raises(ValueError, match="splits 1 tokens, the prompt has 29610"):
        PRICES.statement("anthropic", "claude-sonnet-4", usage, NOVEMBER, Split(1, fresh=1))


@given(
    st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)
)
def test_the_lines_sum_to_the_total_exactly(fresh: int, read: int, five: int, hour: int, output: int) -> None:
    usage = used(fresh, output, read=read, written={"5m": five, "1h": hour}, region="us", service_tier="batch")
    bill = PRICES.bill("anthropic", "claude-haiku-5-5", usage, NOVEMBER)
    assert bill.total == sum((line.usd for line in bill.lines if line.usd is not None), Decimal(0))
    assert bill.total == sum((bill.usd(kind) or 0 for kind in LineKind), Decimal(0))
    assert sum(line.tokens for line in bill.lines) == usage.split.prompt_tokens + output


def test_every_provider_of_the_catalogue_is_known_by_every_name():
    for provider in PROVIDERS:
        for name in (provider.name, *provider.aliases):
            found = PRICES.rates(name, "no-such-model-at-all", used(1), NOVEMBER)
            assert isinstance(found, Unknown)
            assert "has no model" in found.reason, name


def test_every_record_has_a_source_and_positive_prices():
    overlay = load_overlay()
    names = {provider.name for provider in overlay.providers}
    for record in (*overlay.prices, *overlay.fractions, *overlay.factors):
        assert record.source, record
        assert record.provider in names, record
    for record in overlay.prices:
        rates = [record.input, record.read, record.output, record.storage, *record.writes.values()]
        assert any(rate is not None for rate in rates), record
        assert all(rate > 0 for rate in rates if rate is not None), record
        assert [tier.above for tier in record.tiers] == sorted(tier.above for tier in record.tiers), record


def test_names_are_compared_without_case_and_with_dots_as_dashes():
    assert model_key("Claude-Sonnet-5.5") == "claude-sonnet-5-5"
    assert matches(("gpt-6*",), "gpt-6.2-sol")
    assert not matches(("gpt-5.5*",), "gpt-5.4")
