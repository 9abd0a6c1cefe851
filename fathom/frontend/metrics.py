"""PrometheusObserver: what happens to answers, as Prometheus metrics with vLLM's names and meanings, under `fathom:`.

    answers   counted where they are served. Several processes that serve one engine count in files that they share
              (prometheus_client's multiprocess mode), so that each can tell the sum, also of those that have ended.
    engine    its own numbers, the same whoever asks: told as they are, and never added up.

Counters count what usage counts: a prompt once, however many answers it has, and each generated token once, also after
a preemption. Latencies have finer buckets than vLLM's, since a small model's token takes less than 10 ms.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from fathom.frontend.stats import EngineObserver
from fathom.wire.messages import EngineCoreOutputs, SchedulerStats

if TYPE_CHECKING:
    from fathom.frontend.output_processor import RequestState

_SHORT_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.02,
    0.03,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
    40,
)
_LONG_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000, 200_000)
_SMALL = (0, 1, 2, 3, 5, 10, 20, 50, 100)
REASONS = ("stop", "length", "abort", "error")


class PrometheusObserver(EngineObserver):
    """Keeps the metrics of one engine in a registry of its own.

    Args:
        model_name: the value of the label of that name.
        shared: the folder in which all processes that serve the engine count. In each of them
            PROMETHEUS_MULTIPROC_DIR must have named it before prometheus_client was imported.
        counts_steps: whether this process observes the engine's steps; one of those that share a folder does.
        processes: of those that share a folder: name -> process id, as they are now.
    """

    def __init__(
        self,
        model_name: str,
        shared: Path | None = None,
        counts_steps: bool = True,
        processes: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._counts_steps = counts_steps
        self._new_tokens = 0  # of the step that is being taken in
        self._engine = EngineNumbers(self._labels)
        self._told = self.registry
        if shared is None:
            ProcessCollector(registry=self._told)
        else:
            self._told = CollectorRegistry()
            MultiProcessCollector(self._told, str(shared))  # type: ignore[no-untyped-call]
            self._told.register(FrontProcesses(processes))
        self._told.register(self._engine)
        self._make_counters()
        self._make_histograms()

    # ---------------------------------------------------------------- what the engine tells

    def step(self, step: EngineCoreOutputs) -> None:
        """Take in the scheduler's numbers and the size of the step; all of its tokens have been told."""
        self._generation_tokens.inc(self._new_tokens)
        self._new_tokens = 0
        if step.step is not None and self._counts_steps:
            self._iteration_tokens.observe(step.step.context_tokens + step.step.generation_tokens)
        if step.stats is not None:
            self.scheduler(step.stats)

    def scheduler(self, stats: SchedulerStats) -> None:
        """The engine's numbers of now."""
        self._engine.stats = stats

    def tokens(self, state: RequestState, num_new: int, gap_s: float | None) -> None:
        """Count new tokens; with the first of them the prompt, and the time to it."""
        self._new_tokens += num_new  # a counter takes a microsecond
        if gap_s is not None:
            self._inter_token.observe(max(0.0, gap_s) / num_new)
            return
        metrics, length = state.metrics, len(state.request.prompt_token_ids)
        self._first_token.observe(max(0.0, metrics.first_token_time - metrics.arrival_time))
        if state.index == 0:
            self._prompt_tokens.inc(length)
            self._cached_tokens.inc(state.num_cached_tokens)

    def finished(self, state: RequestState) -> None:
        """Count the answer under its reason, and observe its sizes and times."""
        self._success[str(state.finish_reason)].inc()
        metrics, params = state.metrics, state.request.params
        now = time.time()
        if state.index == 0:
            self._params_n.observe(params.n)
            if params.max_tokens is not None:
                self._params_max_tokens.observe(params.max_tokens)
        self._e2e.observe(max(0.0, now - metrics.arrival_time))
        self._request_preemptions.observe(metrics.num_preemptions)
        self._request_generation_tokens.observe(metrics.num_generation_tokens)
        if not metrics.first_token_time:
            return
        self._request_prompt_tokens.observe(len(state.request.prompt_token_ids))
        self._computed_tokens.observe(len(state.request.prompt_token_ids) - state.num_cached_tokens)
        decode_s = metrics.last_token_time - metrics.first_token_time
        self._queue.observe(max(0.0, metrics.scheduled_time - metrics.arrival_time))
        self._prefill.observe(max(0.0, metrics.first_token_time - metrics.scheduled_time))
        self._decode.observe(max(0.0, decode_s))
        self._inference.observe(max(0.0, metrics.last_token_time - metrics.scheduled_time))
        if metrics.num_generation_tokens > 1:
            self._per_token.observe(max(0.0, decode_s) / (metrics.num_generation_tokens - 1))

    # ---------------------------------------------------------------- what the server tells

    def rejected(self, reason: str) -> None:
        """A request was turned away before it reached the engine."""
        self._rejections.labels(**self._labels, reason=reason).inc()

    def answered(self, path: str, status: int) -> None:
        """An HTTP answer was begun."""
        self._http.labels(path=path, status=str(status)).inc()

    def collect(self) -> Iterable[Metric]:
        """All metrics, as they are now."""
        return self._told.collect()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._told)

    # ---------------------------------------------------------------- the metrics

    def _make_counters(self) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, each prompt once.")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Prompt tokens that the prefix cache had.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens of answers, as in usage.")
        finished = Counter(
            "fathom:request_success",
            "Answers that ended, by reason.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self._success = {reason: finished.labels(**self._labels, finished_reason=reason) for reason in REASONS}
        self._rejections = Counter(
            "fathom:admission_rejections", "Requests turned away.", [*self._labels, "reason"], registry=self.registry
        )
        self._http = Counter("fathom:http_requests", "HTTP answers.", ["path", "status"], registry=self.registry)

    def _make_histograms(self) -> None:
        seconds, tokens = self._histogram, self._histogram
        self._first_token = seconds("time_to_first_token_seconds", "From arrival to the first token.", _LONG_S)
        self._inter_token = seconds("inter_token_latency_seconds", "Between tokens of an answer.", _SHORT_S)
        self._per_token = seconds("request_time_per_output_token_seconds", "The mean of that, by answer.", _SHORT_S)
        self._e2e = seconds("e2e_request_latency_seconds", "From arrival to the end.", _LONG_S)
        self._queue = seconds("request_queue_time_seconds", "From arrival to the first step.", _LONG_S)
        self._prefill = seconds("request_prefill_time_seconds", "From the first step to the first token.", _LONG_S)
        self._decode = seconds("request_decode_time_seconds", "From the first token to the last.", _LONG_S)
        self._inference = seconds("request_inference_time_seconds", "From the first step to the last token.", _LONG_S)
        self._iteration_tokens = tokens("iteration_tokens_total", "Tokens of prompts and answers by step.", _TOKENS)
        self._request_prompt_tokens = tokens("request_prompt_tokens", "Prompt tokens by answer.", _TOKENS)
        self._request_generation_tokens = tokens("request_generation_tokens", "The same by answer.", _TOKENS)
        self._computed_tokens = tokens(
            "request_prefill_kv_computed_tokens", "Prompt tokens by answer that the cache did not have.", _TOKENS
        )
        self._params_n = self._histogram("request_params_n", "n of requests.", _SMALL)
        self._params_max_tokens = tokens("request_params_max_tokens", "max_tokens of requests.", _TOKENS)
        self._request_preemptions = self._histogram("request_num_preemptions", "Preemptions by answer.", _SMALL)

    def _counter(self, name: str, words: str) -> Counter:
        return Counter(f"fathom:{name}", words, list(self._labels), registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, words: str, buckets: Sequence[float]) -> Histogram:
        metric = Histogram(f"fathom:{name}", words, list(self._labels), buckets=buckets, registry=self.registry)
        return metric.labels(**self._labels)


class FrontProcesses(Collector):
    """The process metrics of all fronts, told apart by the label `front`, whichever is asked."""

    def __init__(self, processes: Callable[[], dict[str, int]]) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        families: dict[str, Metric] = {}
        for front, process_id in self._processes().items():
            for found in ProcessCollector(pid=partial(int, process_id), registry=None).collect():
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                for sample in found.samples:
                    family.add_sample(sample.name, {"front": front}, sample.value)
        yield from families.values()


class EngineNumbers(Collector):
    """The engine's gauges and counters as it told them last; its counters begin anew with a new engine."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.stats = SchedulerStats(0, 0, 0.0, 0, 0, 0, 0)
        self._labels = labels

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for each scrape."""
        stats = self.stats
        yield self._gauge("num_requests_running", "Answers in the engine's batch.", stats.num_running)
        yield self._gauge("num_requests_waiting", "Answers that wait for a place in the batch.", stats.num_waiting)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV cache in use; 1 is all.", stats.kv_cache_usage)
        queries, hits = stats.prefix_cache_queries, stats.prefix_cache_hits
        yield self._counter("prefix_cache_queries", "Prompt tokens looked up in the cache.", queries)
        yield self._counter("prefix_cache_hits", "Prompt tokens found in the cache.", hits)
        yield self._counter("num_preemptions", "Times that an answer lost its place.", stats.num_preemptions)

    def _gauge(self, name: str, words: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"fathom:{name}", words, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, words: str, value: float) -> Metric:
        family = CounterMetricFamily(f"fathom:{name}", words, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family
