"""Worker: one rank, one device. Loads the model, sizes and holds the KV cache, answers the executor."""

from __future__ import annotations

import logging
import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fathom.dist.group import ALONE, Groups
from fathom.dist.meeting import Meeting
from fathom.dist.place import ONLY, Place
from fathom.dist.torch_group import connect
from fathom.kernels.attention import attention_kernel
from fathom.kv_cache_spec import KVCacheConfig, KVCacheGroup, LayerKVSpec
from fathom.models.loader import load_model
from fathom.step import ModelRunnerOutput, PendingOutput, PrefillTimes, SchedulerOutput
from fathom.weights.resolve import ResolvedModel
from fathom.worker import limits, ways_out
from fathom.worker.device import Device, make_device
from fathom.worker.graph_buckets import GraphBuckets
from fathom.worker.memory import GIB, MemoryUse, measure_graphs
from fathom.worker.model_runner import ModelRunner
from fathom.worker.out_of_memory import explain, nothing_left
from fathom.worker.sample.guard import GuardedProcessor
from fathom.worker.sample.interface import LogitsProcessor, LogitsProcessorContext
from fathom.worker.sample.loading import load_logits_processors
from fathom.worker.sample.sampler import Sampler
from fathom.worker.sample.shared import TokenFollower, TokenLeader, TokensLater, TokenSource
from fathom.worker.warm_up import EVERYTHING, run_dummy_batch, time_prefill

if TYPE_CHECKING:
    from fathom.models.decoder import CausalLM
    from fathom.wire.messages import EngineSetup

logger = logging.getLogger(__name__)


def start_worker(setup: EngineSetup, place: Place, meeting: Meeting) -> Worker:
    """One of several workers, after it has met the others."""
    device = make_device(setup.config, place)
    return Worker(setup, device, place, connect(place, meeting, device.torch_device))


class Worker:
    """Loads the model, or its share of it, on construction; ready for steps after initialize_from_config."""

    def __init__(
        self, setup: EngineSetup, device: Device | None = None, place: Place = ONLY, groups: Groups = ALONE
    ) -> None:
        self._config = config = setup.config
        assert config.cache.kv_cache_dtype != "auto", "the config is not resolved"
        assert config.cache.kv_cache_dtype != "fp8", "the config is not resolved"
        self._vocab_size = setup.model_config.vocab_size
        self.device = device or make_device(config, place)
        self._attention_kernel = attention_kernel(config.runtime.attention_backend)
        self._place = place
        self._groups = groups
        custom_processors = load_logits_processors(config.model.logits_processors)  # a wrong name is found at once
        self._model = explain(lambda: self._load_model(setup), self.device, "loading the weights", ways_out.LOAD)
        self._kv_specs = self._model.kv_specs(config.cache.kv_cache_dtype)
        self._sampler = self._make_sampler(custom_processors)
        self._memory: MemoryUse | None = None
        self._runner: ModelRunner | None = None
        self._profiler: tuple[torch.profiler.profile, str] | None = None

    def get_kv_cache_specs(self) -> list[LayerKVSpec]:
        """What each attention layer stores."""
        return self._kv_specs

    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self._model.weight_bytes()

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: as configured, or what the device can spare.

        Raises:
            InsufficientMemoryError: nothing is left for it, or not even a step of the largest batch could be run.
        """
        configured = self._config.cache.kv_cache_memory_bytes
        if configured is not None:
            return configured
        memory = explain(self._profile, self.device, "running the largest batch to measure it", ways_out.PROFILE)
        if memory.kv_cache == 0:
            raise nothing_left(memory, self.device)
        self._memory = memory
        return memory.kv_cache

    def initialize_from_config(self, kv_cache: KVCacheConfig, max_model_len: int) -> None:
        """Allocate the KV cache, of this stage's layers, and the batch's rows."""
        kv_cache = kv_cache.of_layers(self._model.own_layers, self._kv_specs[0])
        size = kv_cache.num_blocks * kv_cache.bytes_per_block
        self._runner = explain(
            lambda: self._make_runner(kv_cache, max_model_len, self._graph_buckets()),
            self.device,
            f"allocating a KV cache of {size / GIB:.2f} GiB",
            ways_out.KV_CACHE,
        )
        logger.info(
            "KV cache: %d blocks of %d tokens in %s, %.2f GiB; longest sequence %d tokens",
            kv_cache.num_blocks,
            kv_cache.block_size,
            self._kv_specs[0].dtype,
            size / GIB,
            max_model_len,
        )
        self._log_memory(size)

    def capture_model(self) -> bool:
        """Capture CUDA graphs, if there are to be any; returns whether there are."""
        buckets, runner = self._graph_buckets(), self._ready_runner()
        if buckets is None:
            return False
        start, free_before = time.perf_counter(), self.device.memory()[0]
        show_progress = self._config.runtime.show_progress
        try:
            explain(
                lambda: runner.capture_graphs(buckets.largest_first(), show_progress),
                self.device,
                "capturing CUDA graphs",
                ways_out.GRAPHS,
            )
        except RuntimeError as error:
            error.add_note("CUDA graphs could not be captured. enforce_eager=True runs without them.")
            raise
        logger.info(
            "Graph capturing finished in %.2f s, took %.2f GiB: %d sizes of decodes, %d of mixed batches",
            time.perf_counter() - start,
            (free_before - self.device.memory()[0]) / GIB,
            len(buckets.full),
            len(buckets.piecewise),
        )
        return True

    def warm_up(self) -> None:
        """Record steps; then one prefill and one decode on the null block: first calls set up what later ones reuse.

        A GPU's kernels are compiled when they are first launched, those for sampling too.
        """
        assert self._config.scheduler.max_num_batched_tokens is not None
        runner = self._ready_runner()
        runner.record_steps()
        room = runner.max_model_len - 1  # for the token of the decode
        run_dummy_batch(runner, 1, min(8, room, self._config.scheduler.max_num_batched_tokens))
        if self.device.runs_behind:
            run_dummy_batch(runner, 1, 1, EVERYTHING)

    def provide_blocks(self, first: int, end: int) -> bool:
        """Have memory for these KV blocks before they are first used; whether the device has any use for that."""
        return self.device.provide(self._ready_runner().kv_blocks[first:end])

    def time_prefill(self) -> PrefillTimes:
        """What a prompt's tokens cost, measured now."""
        assert self._config.scheduler.max_num_batched_tokens is not None
        runner = self._ready_runner()
        budget = self._config.scheduler.max_num_batched_tokens
        return time_prefill(runner, budget, runner.max_model_len, self._as_on_the_first_rank)

    def _as_on_the_first_rank(self, number: float) -> float:
        """What the first rank has measured, for what all of them must decide alike."""
        shared = torch.tensor([number], dtype=torch.float64, device=self.device.torch_device)
        return float(self._groups.pipeline.broadcast(self._groups.tensor.broadcast(shared)))

    def execute_model(self, step: SchedulerOutput) -> None:
        """Run a step's forward pass, under the step's name in a trace.

        Raises:
            InsufficientMemoryError: an allocation has failed; what it and the step had taken is free again.
        """
        runner = self._ready_runner()
        requests, tokens = len(step.num_scheduled_tokens), step.total_num_scheduled_tokens
        with self._named(step.annotation):
            doing = f"computing a step of {requests} request{'s' * (requests > 1)} and {tokens} tokens"
            explain(lambda: runner.execute_model(step), self.device, doing, ways_out.STEP)

    def sample_tokens(self) -> ModelRunnerOutput | PendingOutput:
        """Sample from its logits."""
        with self._named("sample_tokens"):
            return explain(self._ready_runner().sample_tokens, self.device, "choosing tokens", ways_out.STEP)

    def describe(self) -> dict[str, Any]:
        """What the model reads for one token, and which kernels do it; see worker/limits.py."""
        return limits.describe(self._model, self._kv_specs)

    def measure_limits(self) -> dict[str, float]:
        """Bandwidth and peaks of the device, measured now; takes about a second."""
        return limits.measure_limits(self.device, self._config.runtime.num_threads or 1)

    def start_profile(self, folder: str) -> None:
        """Record steps with torch's profiler."""
        self.stop_profile()
        profiler = torch.profiler.profile(record_shapes=False)
        profiler.start()
        self._profiler = (profiler, folder)

    def is_profiling(self) -> bool:
        """Whether steps are being recorded."""
        return self._profiler is not None

    def stop_profile(self) -> str | None:
        """Write the trace and return its path; None if nothing was being recorded."""
        if self._profiler is None:
            return None
        (profiler, folder), self._profiler = self._profiler, None
        profiler.stop()
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"fathom-rank{self._place.rank}-{time.strftime('%Y%m%d-%H%M%S')}.pt.trace.json")
        profiler.export_chrome_trace(path)
        return path

    def shutdown(self) -> None:
        """Let go of model and KV cache. A trace that cannot be written is lost, which is logged."""
        try:
            self.stop_profile()
        except (OSError, RuntimeError) as error:
            logger.error("the profile that was being recorded could not be written: %s", error)
        self._runner = None
        del self._model

    def _named(self, name: str) -> AbstractContextManager[object]:
        """Work under this name in a trace, if one is recorded."""
        return nullcontext() if self._profiler is None else torch.profiler.record_function(name)

    def _ready_runner(self) -> ModelRunner:
        assert self._runner is not None, "the worker is used before initialize_from_config"
        return self._runner

    def _make_sampler(self, custom_processors: dict[type[LogitsProcessor], frozenset[str]]) -> TokenSource:
        assert self._config.scheduler.max_num_seqs is not None
        context = LogitsProcessorContext(self._vocab_size, self._config.scheduler.max_num_seqs, self._config)
        device = self.device.torch_device
        if not self._model.stage.is_last:
            return TokensLater()
        if self._groups.tensor.rank > 0:
            return TokenFollower(self._groups.tensor, device)
        custom = [
            GuardedProcessor(kind(context, device, device.type == "cuda"), known_as)
            for kind, known_as in custom_processors.items()
        ]
        sampler = Sampler(context, device, self._config.model.logprobs_mode, custom)
        return sampler if self._groups.tensor.size == 1 else TokenLeader(sampler, self._groups.tensor, device)

    def _load_model(self, setup: EngineSetup) -> CausalLM:
        options = self._config.model
        assert options.max_model_len is not None, "the config is not resolved"
        assert options.weights != "auto", "the config is not resolved"
        return load_model(
            setup.model_config,
            ResolvedModel(Path(setup.model_path), setup.model_format, options.model),
            load_format=options.load_format,
            weights=options.weights,
            quantization=options.quantization,
            activations=options.activations,
            dtype=getattr(torch, options.dtype),
            device=self.device.torch_device,
            max_model_len=options.max_model_len,
            show_progress=self._config.runtime.show_progress,
            groups=self._groups,
        )

    def _can_replay_steps(self) -> bool:
        """Not among several ranks: what they say to each other is no kernel call that could be recorded."""
        return self.device.replays_steps and not self._config.runtime.enforce_eager and self._place.num_workers == 1

    def _graph_buckets(self) -> GraphBuckets | None:
        """The sizes of steps that are captured as CUDA graphs; None for none."""
        runtime, max_num_seqs = self._config.runtime, self._config.scheduler.max_num_seqs
        assert runtime.cudagraph_mode is not None, "the config is not resolved"
        assert max_num_seqs is not None
        if not runtime.cudagraph_capture_sizes:
            return None
        return GraphBuckets.of(runtime.cudagraph_mode, runtime.cudagraph_capture_sizes, max_num_seqs)

    def _make_runner(
        self, kv_cache: KVCacheConfig, max_model_len: int, buckets: GraphBuckets | None = None
    ) -> ModelRunner:
        assert self._config.scheduler.max_num_seqs is not None
        assert self._config.scheduler.max_num_batched_tokens is not None
        return ModelRunner(
            self._model,
            self._sampler,
            self.device,
            self._kv_specs,
            kv_cache,
            self._config.scheduler.max_num_seqs,
            self._config.scheduler.max_num_batched_tokens,
            max_model_len,
            self._config.model.logprobs_mode,
            use_graphs=self._can_replay_steps(),
            is_last_stage=self._model.stage.is_last,
            buckets=buckets,
            attend_by=self._attention_kernel,
        )

    def _profile(self) -> MemoryUse:
        return self.device.profile(self._model.weight_bytes(), self._run_largest_batch, self._measure_graphs)

    def _small_runner(self, buckets: GraphBuckets | None = None) -> ModelRunner:
        """One on a cache of one block, as there can be before the KV cache is sized."""
        assert self._config.model.max_model_len is not None
        layers = tuple(range(len(self._kv_specs)))
        kv_cache = KVCacheConfig(1, self._config.cache.block_size, len(layers), (KVCacheGroup(layers),), 0)
        return self._make_runner(kv_cache, self._config.model.max_model_len, buckets)

    def _run_largest_batch(self) -> None:
        """The step that takes the most memory: as many requests and tokens as may be."""
        scheduler, max_model_len = self._config.scheduler, self._config.model.max_model_len
        assert scheduler.max_num_seqs is not None
        assert scheduler.max_num_batched_tokens is not None
        assert max_model_len is not None
        requests = min(scheduler.max_num_seqs, scheduler.max_num_batched_tokens)
        each = min(scheduler.max_num_batched_tokens // requests, max_model_len - 1)
        run_dummy_batch(self._small_runner(), requests, each)

    def _measure_graphs(self) -> int:
        """About what the graphs will take."""
        buckets = self._graph_buckets()
        if buckets is None:
            return 0
        runner = self._small_runner(buckets)
        return measure_graphs(buckets, runner.capture_graphs, self._memory_taken)

    def _memory_taken(self) -> int:
        free, total = self.device.memory()
        return total - free

    def _log_memory(self, kv_cache: int) -> None:
        """The memory table, as far as it was measured."""
        memory = self._memory
        if memory is None:  # the cache's size was given, so nothing was run; what is there now has the cache in it
            free, total = self.device.memory()
            weights = self._model.weight_bytes()
            memory = MemoryUse(total, total, max(0, total - free - weights), weights)
        logger.info("memory of %s:", self.device.torch_device)
        for line in memory.table(kv_cache):
            logger.info(line)
