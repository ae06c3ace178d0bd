"""Rooflines worked out by hand on the small model: 100 bytes and 1000 operations per second."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import PlanError
from kvledger.page.html import render
from kvledger.plan.catalog import catalogued_accelerator
from kvledger.plan.gpu import GpuPlan, _visible
from kvledger.plan.gpu_report import gpu_page, gpu_record
from kvledger.plan.memory import MemoryPlan
from kvledger.plan.models import find_model
from tests.plan.shapes import accelerator, shape


def plan(context: int = 16, **options) -> GpuPlan:
    memory = MemoryPlan(shape(), context, 1, accelerator=accelerator(), step_tokens=1024)
    return GpuPlan(memory, **options)


def test_decoding_by_hand():
    """Matrices: 2 x 592 + 80 = 1264 multiply-adds; attention 2 layers x 2 x 8 x 16 tokens = 512: 3552 operations a
    token. Read: weights without the embedding, 2544 bytes; 16 tokens x 32 bytes a request."""
    alone = plan().decode(1)
    assert (alone.flops, alone.bytes) == (3552, 2544 + 512)
    assert alone.bound == "memory"
    assert alone.seconds == pytest.approx(30.56)
    four = plan().decode(4)
    assert (four.flops, four.bytes) == (4 * 3552, 2544 + 4 * 512)


def test_prefill_by_hand():
    """16 tokens x 1184 + output 80; token i sees i: 136 pairs x 2 layers x 16. The weights are read once, 512 bytes of
    keys and values written."""
    phase = plan().prefill(16)
    assert phase.flops == 2 * (16 * 1184 + 80 + 136 * 32)
    assert phase.bytes == 2544 + 512
    assert phase.bound == "compute"
    assert plan().input_seconds == pytest.approx(2 * (16 * 1184 + 80 + 136 * 32) / 1000 / 16)


def test_cached_prefill_by_hand():
    """Of 16 tokens 12 are cached: 4 fresh ones see 13, 14, 15 and 16. The 12 are read (384 bytes), not computed."""
    found = plan(cached=12)
    phase = found.prefill(4, 12)
    assert phase.flops == 2 * (4 * 1184 + 80 + 58 * 32)
    assert phase.bytes == 2544 + 128 + 384
    without = found.prefill(4)
    assert without.flops == 2 * (4 * 1184 + 80 + 10 * 32)
    assert found.cached_seconds == pytest.approx((phase.seconds - without.seconds) / 12)
    assert 0 < found.cached_seconds < found.input_seconds


def test_a_prompt_longer_than_a_step_reads_the_weights_again():
    memory = MemoryPlan(shape(), 16, 1, accelerator=accelerator(), step_tokens=6)
    assert GpuPlan(memory).prefill(16).bytes == 3 * 2544 + 512 + (6 + 12) * 32


def test_costs_are_decimals_of_a_million_tokens():
    found = plan(price_per_hour=Decimal("3.60"), batch=1)
    assert found.cost(found.output_seconds(1)) == Decimal("30560.0")
    assert found.cost(0.0) == 0
    assert plan().cost(1.0) is None
    assert gpu_record(found)["cost_per_million"]["output"] == "30560.0"


def test_the_batch_at_which_decoding_stops_waiting_for_memory():
    """One token costs 3.552 s of arithmetic but 5.12 s of reading: never. With 4 tokens behind it 2.784 s against
    1.28 s: 25.44 / (2.784 - 1.28) = 16.9, so 17."""
    assert plan().critical_batch is None
    assert plan(context=4).critical_batch == 17
    assert plan(context=4).decode(16).bound == "memory"
    assert plan(context=4).decode(17).bound == "compute"


def test_efficiency_scales_times_and_nothing_else():
    half = plan(efficiency=0.5)
    assert half.decode(1).seconds == pytest.approx(2 * plan().decode(1).seconds)
    assert half.ridge == plan().ridge == 10


@given(st.integers(1, 40), st.integers(0, 40), st.none() | st.integers(1, 50))
def test_visible_tokens_counted_one_by_one(fresh, cached, window):
    expected = sum(min(cached + i + 1, window or 1000) for i in range(fresh))
    assert _visible(fresh, cached, window) == expected


def test_experts_are_read_as_they_are_used():
    moe = find_model("mixtral-8x7b")
    run = moe.layers[0]
    assert run.experts_touched(1) == pytest.approx(2)
    assert run.experts_touched(2) == pytest.approx(8 * (1 - 0.75**2))
    assert moe.step_bytes(None, 1) < moe.step_bytes(None, 8) < moe.weights_bytes()
    assert moe.step_bytes(None, 1) / 2 == pytest.approx(moe.matmul_parameters, rel=0.001)


def test_llama_3_8b_on_an_h100():
    """15.0 GB of weights at 3350 GB/s: 4.5 ms a token at least."""
    memory = MemoryPlan(find_model("llama-3-8b"), 8192, 1, accelerator=catalogued_accelerator("h100-80gb"))
    found = GpuPlan(memory, price_per_hour=Decimal(2))
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    assert found.decode(1).seconds == pytest.approx((weights + 8192 * 131_072) / 3.35e12)
    assert found.prefill(8192).bound == "compute"
    assert found.arithmetic == "bf16"
    assert found.output_seconds(found.largest_batch) > 10 * found.input_seconds > 100 * found.cached_seconds / 3


def test_fp8_weights_use_the_faster_arithmetic_where_there_is_one():
    for gpu, expected in (("h100-80gb", "fp8"), ("a100-80gb", "bf16"), ("t4-16gb", "fp16")):
        memory = MemoryPlan(
            find_model("llama-3-8b"), 512, 1, weight_dtype="fp8", accelerator=catalogued_accelerator(gpu)
        )
        assert GpuPlan(memory).arithmetic == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"price_per_hour": Decimal(0)},
        {"price_per_hour": Decimal("NaN")},
        {"efficiency": 0.0},
        {"efficiency": float("nan")},
        {"efficiency": 1.5},
        {"cached": 16},
        {"cached": 0},
        {"batch": 0},
        {"context": 1},
        {"context": 4000},
    ],
)
def test_impossible_plans_are_refused(wrong):
    with pytest.raises(PlanError):
        plan(**wrong)


def test_record_and_page():
    found = plan(price_per_hour=Decimal("2.5"))
    record = json.loads(json.dumps(gpu_record(found)))
    assert record["decode"]["bound"] == "memory"
    assert record["compute_bound_from_batch"] is None
    page = render(gpu_page(found))
    assert "Why output is dearer" in page
    assert "no batch makes decoding wait" in page
