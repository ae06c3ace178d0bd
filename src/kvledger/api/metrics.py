"""`GET /metrics`: what the server does, for Prometheus.

Names are those of vLLM, with `kvledger:` for `vllm:`, wherever the meaning is the same, so that a dashboard made for
one needs that prefix exchanged and nothing else. What only this server has begins with `kvledger:cache_`. Numbers of
the engine and the cache are read when somebody asks, between two steps, so they agree with each other.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response

from kvledger.cache.counters import Counters
from kvledger.cache.counters import Histogram as Durations
from kvledger.cache.events import RemovalReason
from kvledger.cache.miss import MissReason
from kvledger.cache.prompt_cache import PromptCache
from kvledger.cache.tiers import LowerTier
from kvledger.engine.request import Finished, FinishReason
from kvledger.engine.status import EngineStatus

if TYPE_CHECKING:
    from kvledger.api.service import Service

_PREFIX = "kvledger:"
_LABEL = "model_name"

_TTFT_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_REQUEST_BUCKETS = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0)


class Metrics:
    """What is counted as it happens, on the event loop: the times of finished sequences, and answers by status."""

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.registry = CollectorRegistry(auto_describe=False)
        self._ttft = self._histogram("time_to_first_token_seconds", "From arrival to the first token.", _TTFT_BUCKETS)
        self._e2e = self._histogram("e2e_request_latency_seconds", "From arrival to the last token.", _REQUEST_BUCKETS)
        self._queue = self._histogram("request_queue_time_seconds", "From arrival to admission.", _REQUEST_BUCKETS)
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From admission to the first token.", _REQUEST_BUCKETS
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From the first to the last token.", _REQUEST_BUCKETS
        )
        self._responses = Counter(
            f"{_PREFIX}http_responses", "HTTP requests answered.", [_LABEL, "status"], registry=self.registry
        )

    def add_sequence(self, finished: Finished, before_engine: float) -> None:
        """A sequence has ended that reached the engine `before_engine` seconds after its request arrived."""
        usage = finished.usage
        if usage.output_tokens:
            self._queue.observe(before_engine + usage.queued)
            self._prefill.observe(usage.prefill)
            self._decode.observe(usage.decode)
            self._ttft.observe(before_engine + usage.queued + usage.prefill)
            self._e2e.observe(before_engine + usage.queued + usage.prefill + usage.decode)

    def add_response(self, status: int) -> None:
        """An HTTP request was answered."""
        self._responses.labels(self.model_name, str(status)).inc()

    def _histogram(self, name: str, meaning: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(
            _PREFIX + name, f"{meaning} Seconds.", [_LABEL], registry=self.registry, buckets=(*buckets, float("inf"))
        )
        return family.labels(self.model_name)


async def show_metrics(request: Request) -> Response:
    """For operators: sums over all tenants can tell one what another does, by how they change."""
    service: Service = request.app.state.service
    service.keys.operator(request)
    cache = await asyncio.to_thread(service.engine.with_cache, CacheReading.of)
    metrics = [
        *service.metrics.registry.collect(),
        *_engine_metrics(service.engine.status(), service.model_names[0]),
        *_cache_metrics(cache, service.model_names[0]),
    ]
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(_Collected(metrics)), headers={"content-type": content_type})


class _Collected(CollectorRegistry):
    """Metrics that are collected already, as the encoders want them."""

    def __init__(self, metrics: list[Metric]) -> None:
        super().__init__()
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        yield from self._metrics


@dataclass(frozen=True)
class CacheReading:
    """Numbers of the prompt cache, all of one moment. `disk` is None where there is no lower tier."""

    blocks: dict[str, int]
    bytes_per_block: int
    counters: Counters
    disk: DiskReading | None

    @classmethod
    def of(cls, cache: PromptCache) -> CacheReading:
        """Read them, on the thread that owns the cache."""
        pool, lower = cache.pool, cache.lower
        return cls(
            {"free": pool.free, "owned": pool.owned, "ready": pool.ready, "idle": pool.idle},
            cache.bytes_per_block,
            copy.deepcopy(cache.counters),
            DiskReading.of(lower) if lower is not None else None,
        )


@dataclass(frozen=True)
class DiskReading:
    """Numbers of the lower tier."""

    bytes_held: int
    loaded_blocks: int
    stored_blocks: int
    failed_loads: int

    @classmethod
    def of(cls, lower: LowerTier) -> DiskReading:
        return cls(lower.tier.bytes_held, lower.loaded_blocks, lower.stored_blocks, lower.failed_loads)


def _engine_metrics(status: EngineStatus, model: str) -> Iterator[Metric]:
    yield _gauge("num_requests_running", "Sequences being computed.", status.running, model)
    yield _gauge("num_requests_waiting", "Sequences waiting to be admitted.", status.waiting, model)
    yield _counter("num_preemptions", "Times that a sequence had to give way.", status.preemptions, model)
    yield _counter("prompt_tokens", "Prompt tokens of finished sequences.", status.prompt_tokens, model)
    yield _counter("prompt_tokens_cached", "Of these, tokens reused from the cache.", status.reused_tokens, model)
    yield _counter("generation_tokens", "Tokens generated for finished sequences.", status.output_tokens, model)
    yield _counter("steps", "Forward passes.", status.steps, model)
    yield _counter(
        "computed_tokens", "Tokens that went through the model, repeated ones included.", status.computed_tokens, model
    )
    yield _by_label(
        "request_success",
        "Sequences finished.",
        "finished_reason",
        {reason.value: status.finished.get(reason, 0) for reason in FinishReason},
        model,
    )


def _cache_metrics(cache: CacheReading, model: str) -> Iterator[Metric]:
    blocks, counters = cache.blocks, cache.counters
    used = blocks["owned"] + blocks["ready"]
    yield _gauge(
        "kv_cache_usage_perc",
        "Share of the KV pool held by running sequences; 1 is all of it.",
        used / sum(blocks.values()),
        model,
    )
    yield _counter("prefix_cache_queries", "Prompt tokens looked up.", counters.prompt_tokens, model)
    yield _counter("prefix_cache_hits", "Prompt tokens found and reused.", counters.reused_tokens, model)
    yield _durations("kv_block_lifetime_seconds", "From storing a block to its removal.", counters.lifetime, model)
    yield _durations("kv_block_reuse_gap_seconds", "How long a block was idle before a hit.", counters.reuse_gap, model)

    yield _counter("cache_lookups", "Look-ups: one per admitted sequence.", counters.lookups, model)
    yield _counter(
        "cache_prompt_tokens_computed",
        "Prompt tokens that were not found.",
        counters.prompt_tokens - counters.reused_tokens,
        model,
    )
    yield _by_label(
        "cache_misses",
        "Look-ups that left more than the last token to compute, by what stood there.",
        "reason",
        {reason.value: counters.misses[reason] for reason in MissReason},
        model,
    )
    yield _by_label(
        "cache_removed_blocks",
        "Blocks that left the cache.",
        "reason",
        {reason.value: counters.removed_blocks[reason] for reason in RemovalReason},
        model,
    )
    states = GaugeMetricFamily(f"{_PREFIX}cache_blocks", "Blocks of the KV pool by state.", labels=[_LABEL, "state"])
    for state, count in blocks.items():
        states.add_metric([model, state], count)
    yield states
    held = GaugeMetricFamily(f"{_PREFIX}cache_bytes", "Bytes of cached KV by tier.", labels=[_LABEL, "tier"])
    held.add_metric([model, "ram"], (blocks["ready"] + blocks["idle"]) * cache.bytes_per_block)
    if cache.disk is not None:
        held.add_metric([model, "disk"], cache.disk.bytes_held)
        yield _counter("cache_disk_loaded_blocks", "Blocks brought up.", cache.disk.loaded_blocks, model)
        yield _counter("cache_disk_stored_blocks", "Blocks handed down.", cache.disk.stored_blocks, model)
        yield _counter("cache_disk_failed_loads", "Blocks that could not be read.", cache.disk.failed_loads, model)
    yield held


def _gauge(name: str, meaning: str, value: float, model: str) -> Metric:
    family = GaugeMetricFamily(_PREFIX + name, meaning, labels=[_LABEL])
    family.add_metric([model], value)
    return family


def _counter(name: str, meaning: str, value: float, model: str) -> Metric:
    family = CounterMetricFamily(_PREFIX + name, meaning, labels=[_LABEL])
    family.add_metric([model], value)
    return family


def _by_label(name: str, meaning: str, label: str, values: dict[str, int], model: str) -> Metric:
    """A counter with a value for every value of `label`: those that are 0, too, so that rates can be taken."""
    family = CounterMetricFamily(_PREFIX + name, meaning, labels=[_LABEL, label])
    for value, count in values.items():
        family.add_metric([model, value], count)
    return family


def _durations(name: str, meaning: str, durations: Durations, model: str) -> Metric:
    bounds = [*map(str, durations.bounds), "+Inf"]
    family = HistogramMetricFamily(_PREFIX + name, f"{meaning} Sampled; seconds.", labels=[_LABEL])
    family.add_metric([model], list(zip(bounds, accumulate(durations.counts), strict=True)), sum_value=durations.sum)
    return family
