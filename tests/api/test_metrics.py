"""`/metrics`: names, values, and that they agree with what happened."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from tests.api.conftest import eventually


def scrape(served, **headers: str) -> dict[tuple[str, ...], float]:
    """(sample name, label values except the model) -> value."""
    with served.client() as client:
        response = client.get("/metrics", headers=headers)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    samples = {}
    for family in text_string_to_metric_families(response.text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "scripted", sample
            samples[(sample.name.removeprefix("kvledger:"), *labels.values())] = sample.value
    return samples


def test_names_are_those_of_vllm_where_the_meaning_is(served):
    names = {name for name, *_ in scrape(served)}
    assert names >= {
        "num_requests_running",
        "num_requests_waiting",
        "num_preemptions_total",
        "kv_cache_usage_perc",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "prompt_tokens_total",
        "prompt_tokens_cached_total",
        "generation_tokens_total",
        "request_success_total",
        "time_to_first_token_seconds_bucket",
        "e2e_request_latency_seconds_sum",
        "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count",
        "request_decode_time_seconds_count",
        "kv_block_lifetime_seconds_bucket",
        "kv_block_reuse_gap_seconds_bucket",
    }


def test_a_finished_request_is_counted_once(served):
    assert served.chat("hello", n=2).status_code == 200
    samples = scrape(served)
    assert samples["request_success_total", "stop"] == 2
    assert samples["request_success_total", "error"] == 0
    assert samples["generation_tokens_total",] == 10
    assert samples["time_to_first_token_seconds_count",] == 2
    assert samples["time_to_first_token_seconds_sum",] == 2 * (0.25 + 0.5)
    assert samples["request_decode_time_seconds_sum",] == 2 * 2.0
    assert samples["http_responses_total", "200"] == 1


def test_refusals_are_counted_by_status_and_reach_no_histogram(served):
    served.chat(model="another")
    samples = scrape(served)
    assert samples["http_responses_total", "404"] == 1
    assert samples["time_to_first_token_seconds_count",] == 0


def test_the_cache_is_told_by_state_reason_and_tier(served):
    cache = served.engine.cache
    served.engine.remember("", "a" * 40)
    cache._clock.advance(20)
    served.engine.remember("", "a" * 40)
    cache.clear()
    served.engine.remember("", "b" * 16)
    samples = scrape(served)
    assert samples["cache_lookups_total",] == 3
    assert samples["prefix_cache_queries_total",] == 96
    assert samples["prefix_cache_hits_total",] == 39
    assert samples["cache_prompt_tokens_computed_total",] == 96 - 39
    assert samples["cache_misses_total", "cold_start"] == 2
    assert samples["cache_misses_total", "evicted"] == 0
    assert samples["cache_removed_blocks_total", "cleared"] == 3
    assert samples["cache_bytes", "ram"] == 1000
    assert samples["cache_blocks", "idle"] == 1
    assert samples["cache_blocks", "free"] == 63
    assert samples["kv_cache_usage_perc",] == 0
    assert samples["kv_block_reuse_gap_seconds_sum",] == 20
    assert samples["kv_block_reuse_gap_seconds_bucket", "15.0"] == 0
    assert samples["kv_block_reuse_gap_seconds_bucket", "60.0"] == 1
    assert samples["kv_block_reuse_gap_seconds_bucket", "+Inf"] == 1


def test_running_requests_show(served):
    served.engine.go.clear()
    with served.sdk().with_options(timeout=30) as sdk:
        stream = None
        try:
            served.engine.go.set()
            stream = sdk.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "!endless"}], stream=True
            )
            next(stream)
            assert scrape(served)["num_requests_running",] == 1
        finally:
            if stream is not None:
                stream.close()
    assert eventually(lambda: scrape(served)["num_requests_running",] == 0)


def test_openmetrics_for_those_who_ask_for_it(served):
    with served.client() as client:
        response = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
