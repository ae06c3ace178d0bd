"""Memory plans against known answers and sums done by hand."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvledger.errors import PlanError
from kvledger.model.config import config_from_json
from kvledger.model.kv import KVPool, bytes_per_block
from kvledger.page.html import render
from kvledger.plan.catalog import catalogued_accelerator, models
from kvledger.plan.dtypes import KV_BITS, kv_dtype, weight_dtype
from kvledger.plan.memory import MemoryPlan
from kvledger.plan.models import find_model
from kvledger.plan.report import memory_page, memory_record
from tests.plan.shapes import CONFIG, accelerator, shape

GIB = 1 << 30


def test_seven_billion_parameters_with_as_many_kv_heads_as_queries():
    plan = MemoryPlan(find_model("llama-2-7b"), context=8192, concurrency=1)
    assert plan.kv_bytes_per_token == 524_288 == 2 * 32 * 32 * 128 * 2
    assert plan.kv_bytes_per_request == 4 * GIB


def test_llama_3_70b_at_8192_tokens():
    plan = MemoryPlan(find_model("llama-3-70b"), context=8192, concurrency=32)
    assert plan.kv_bytes_per_request == 2_684_354_560
    assert plan.kv_bytes_total == 32 * 2_684_354_560
    assert plan.weights_bytes == 2 * 70_553_706_496


@pytest.mark.parametrize(
    ("model", "context", "expected"),
    [
        # MQA: 18 layers x K, V x 1 head x 256 x 2 bytes.
        ("gemma-2b", 1000, 1000 * 18 * 2 * 256 * 2),
        # MLA: 61 layers x (512 + 64) x 2 bytes.
        ("deepseek-v3", 4096, 4096 * 61 * 576 * 2),
        # A window in every layer.
        ("mistral-7b-v0.1", 32768, 4096 * 32 * 2 * 8 * 128 * 2),
        # Five windowed layers for one full: 52 x 1024 tokens and 10 x all.
        ("gemma-3-27b", 131072, (52 * 1024 + 10 * 131072) * 2 * 16 * 128 * 2),
        ("gemma-3-27b", 1000, 62 * 1000 * 2 * 16 * 128 * 2),
        # Every second layer a window of 128.
        ("gpt-oss-120b", 131072, (18 * 128 + 18 * 131072) * 2 * 8 * 64 * 2),
        # Nine layers of 72 with keys and values; 63 Mamba states of 16384 x 16 in float32, convolutions 16384 x 3.
        ("jamba-1.5-large", 262144, 262144 * 9 * 2 * 8 * 128 * 2 + 63 * (16384 * 16 * 4 + 16384 * 3 * 2)),
        # Twelve of 48; 36 states of 32 x 128 x 128 in float32, convolutions of 2 x 2048 + 4096 channels x 3.
        ("qwen3-next-80b-a3b", 262144, 262144 * 12 * 2 * 2 * 256 * 2 + 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)),
        # Four of 40; 36 states of 128 x 64 x 128, convolutions of 8192 + 2 x 128 channels x 3.
        ("granite-4.0-h-small", 4096, 4096 * 4 * 2 * 8 * 128 * 2 + 36 * (128 * 64 * 128 * 4 + 8448 * 3 * 2)),
        # Ten of 80; 70 states of 64 x 128 x 128.
        ("minimax-text-01", 4096, 4096 * 10 * 2 * 8 * 128 * 2 + 70 * 64 * 128 * 128 * 4),
    ],
)
def test_each_kind_of_layer_by_its_own_formula(model, context, expected):
    assert MemoryPlan(find_model(model), context=context, concurrency=1).kv_bytes_per_request == expected


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("fp32", 32), ("fp16", 16), ("bf16", 16), ("fp8", 8), ("int8", 8), ("int4", 4), ("q8_0", 8.5), ("q4_0", 4.5)],
)
def test_bytes_by_data_type(dtype, bits):
    plan = MemoryPlan(find_model("llama-2-7b"), context=1, concurrency=1, kv_dtype=dtype)
    assert plan.kv_bytes_per_token == 524_288 * bits / 16


def test_the_servers_own_pool_is_as_large_as_planned():
    config = config_from_json("config.json", {**CONFIG, "head_dim": 32, "rms_norm_eps": 1e-5})
    planned = shape(head_dim=32)
    for served, dtype in (("f16", "fp16"), ("f32", "fp32")):
        assert bytes_per_block(config, served) == KVPool.block_size * planned.kv_bytes_per_token(dtype)


@given(
    st.sampled_from(sorted(models())), st.integers(1, 300_000), st.integers(1, 5000), st.sampled_from(sorted(KV_BITS))
)
def test_more_tokens_never_take_less(model, context, more, dtype):
    found = find_model(model)
    assert found.request_bytes(dtype, context) <= found.request_bytes(dtype, context + more)
    assert found.request_bytes(dtype, context) <= found.state_bytes + context * found.kv_bytes_per_token(dtype) + 1


@given(st.sampled_from(sorted(models())), st.integers(1, 100_000), st.integers(1, 64))
def test_spread_over_accelerators_nothing_is_lost(model, context, accelerators):
    found = find_model(model)
    each = found.request_bytes_on("fp16", context, accelerators)
    assert accelerators * each >= found.request_bytes("fp16", context)
    assert each <= found.request_bytes_on("fp16", context, 1) == found.request_bytes("fp16", context)


def test_kv_heads_that_do_not_divide_are_kept_twice():
    found = find_model("llama-3-70b")  # 8 KV heads
    whole = found.request_bytes("fp16", 1024)
    assert found.request_bytes_on("fp16", 1024, 8) * 8 == whole
    assert found.request_bytes_on("fp16", 1024, 16) * 16 == 2 * whole
    latent = find_model("deepseek-v3")
    assert latent.request_bytes_on("fp16", 1024, 8) == latent.request_bytes("fp16", 1024)
    warnings = MemoryPlan(latent, 1024, 1, accelerators=8).warnings
    assert "latent vectors" in warnings[0]
    warnings = MemoryPlan(found, 1024, 1, accelerators=16).warnings
    assert "8 KV heads do not divide between 16" in warnings[0]
    assert not MemoryPlan(found, 1024, 1, accelerators=8).warnings


def test_what_fits_by_hand():
    """Weights 2704 bytes; a step of 16 tokens 16 x (4 x 8 + 2 x 16) x 2 = 2048; a request of 16 tokens 16 x 32 = 512
    and logits of 40. Of 9000 usable bytes 4248 are left: 7 requests."""
    plan = MemoryPlan(shape(), context=16, concurrency=7, accelerator=accelerator(), step_tokens=16)
    assert plan.activations_bytes == 2048 + 7 * 40
    assert plan.usable_bytes == 9000
    assert plan.max_concurrency == (9000 - 2704 - 2048) // 552 == 7
    assert plan.fits
    eight = MemoryPlan(shape(), context=16, concurrency=8, accelerator=accelerator(), step_tokens=16)
    assert not eight.fits
    assert eight.max_concurrency == 7


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 8), st.floats(0.05, 1))
def test_it_fits_exactly_up_to_the_largest_concurrency(context, concurrency, accelerators, utilization):
    plan = MemoryPlan(
        shape(),
        context=context,
        concurrency=concurrency,
        accelerator=accelerator(),
        accelerators=accelerators,
        utilization=utilization,
    )
    needed = plan.bytes_per_accelerator(-(-context // 16) * 16, concurrency)
    assert plan.fits == (needed <= plan.usable_bytes) == (concurrency <= plan.max_concurrency)


def test_paged_wastes_less_than_a_block_and_contiguous_the_rest_of_the_limit():
    plan = MemoryPlan(shape(), context=17, concurrency=1, accelerator=accelerator(), step_tokens=16)
    record = memory_record(plan)["allocation"]
    assert record["paged"]["wasted_bytes_per_request"] == 15 * 32
    assert record["contiguous"]["reserved_tokens"] == 64
    assert record["contiguous"]["wasted_bytes_per_request"] == (64 - 17) * 32
    assert record["contiguous"]["max_concurrency"] < record["paged"]["max_concurrency"]


def test_a_context_beyond_the_models_limit_is_warned_about():
    plan = MemoryPlan(shape(), context=65, concurrency=1)
    assert "beyond the 64 tokens" in plan.warnings[0]
    assert not MemoryPlan(shape(), context=64, concurrency=1).warnings


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": 0},
        {"concurrency": 0},
        {"concurrency": -3},
        {"context": 10**400},
        {"accelerators": 0},
        {"step_tokens": 0},
        {"utilization": 0.0},
        {"utilization": 1.1},
        {"utilization": float("nan")},
        {"reserve": 0},
        {"reserve": 3},
    ],
)
def test_impossible_sizes_are_refused(wrong):
    with pytest.raises(PlanError, match="--"):
        MemoryPlan(shape(), **{"context": 16, "concurrency": 1, **wrong})


def test_unknown_data_types_get_near_names():
    assert kv_dtype("F16") == "fp16"
    with pytest.raises(PlanError, match="did you mean fp8"):
        kv_dtype("fp9")
    with pytest.raises(PlanError, match="--weight-dtype takes"):
        weight_dtype("quantum")


def test_mxfp4_is_of_the_experts_only():
    """gpt-oss-120b as published takes some 65 GB (its repository has 60.8 GiB of safetensors)."""
    assert find_model("gpt-oss-120b").weights_bytes() / GIB == pytest.approx(60.8, rel=0.005)


def test_record_and_page():
    plan = MemoryPlan(find_model("gemma-3-27b"), 100_000, 1, accelerator=catalogued_accelerator("h100-80gb"))
    record = json.loads(json.dumps(memory_record(plan)))
    assert record["weights_bytes"] == plan.weights_bytes
    assert record["fits"] is True
    assert record["kv_bytes_per_token_at_context"] == 10 * 2 * 16 * 128 * 2
    page = render(memory_page(plan))
    assert f"{plan.kv_bytes_per_request:,}" in page
    assert "<svg" in page
    assert "http" not in page
    assert memory_record(MemoryPlan(shape(), 1, 1))["fits"] is None
