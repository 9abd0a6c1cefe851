"""EngineCore: the engine without a process around it. One step is schedule, execute, sample, update.

With async scheduling two steps are in flight, and the scheduler works while the model computes:

    scheduler   schedule 1, 2 |  wait   | update 1, send, schedule 3 | wait | update 2, send, schedule 4 | ...
    worker                    | 1           | 2                          | 3                             | ...

With several pipeline stages as many steps are in flight as there are stages, of different requests each.

On a CPU the scheduler and the model share the cores, and to hand a step from thread to thread takes longer than a step
of one request can win by it: while there is only one, its steps run one after the other on the caller's thread.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fathom.config import EngineConfig
from fathom.core.blocks_ahead import BlocksAhead
from fathom.core.control import ControlOperations
from fathom.core.kv_cache.groups import blocks_per_sequence, longest_sequence, make_kv_cache_config
from fathom.core.scheduler.pace import step_size_for
from fathom.core.scheduler.prefill_room import StepSize
from fathom.core.scheduler.scheduler import Scheduler
from fathom.core.step_stats import step_stats
from fathom.errors import EngineDeadError, ServerError
from fathom.executor.base import Executor, Reply
from fathom.executor.choice import prepare_executor
from fathom.kv_cache_spec import KVCacheConfig
from fathom.phases import Phases
from fathom.plugins import load_general_plugins
from fathom.step import ModelRunnerOutput, PendingOutput, SchedulerOutput
from fathom.wire.messages import (
    AbortRequests,
    AddRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineReady,
    EngineSetup,
    UtilityCall,
    UtilityReply,
)

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LaunchedStep:
    """A step that the workers have been given, and what will become of it.

    launched: time.perf_counter() when they were given it, schedule_s after it was begun.
    """

    work: SchedulerOutput
    forward: Reply
    tokens: Reply
    launched: float
    schedule_s: float

    def result(self) -> ModelRunnerOutput:
        """Wait for the step; raises what it raised."""
        self.forward.result()  # if both failed, this is why
        output: ModelRunnerOutput | PendingOutput = self.tokens.result()[0]
        return output if isinstance(output, ModelRunnerOutput) else output.result()

    def settle(self) -> None:
        """Wait until nothing of it runs any more, whatever comes of it; if the workers die, the next call says so."""
        for reply in (self.forward, self.tokens):
            with contextlib.suppress(Exception):
                reply.result()


class EngineCore:
    """Schedules requests and runs the model.

    Args:
        setup: resolved config and model.
        phases: the clock of the boot; a new one if the boot starts here.
        make_executor: from `prepare_executor`, if the boot has begun earlier.
    """

    def __init__(
        self,
        setup: EngineSetup,
        phases: Phases | None = None,
        make_executor: Callable[[EngineSetup], Executor] | None = None,
    ) -> None:
        phases = phases or Phases()
        load_general_plugins()
        make_executor = make_executor or prepare_executor(setup.config.parallel)
        self.executor = make_executor(setup)
        try:
            self._start(setup, phases)
        except BaseException:  # whoever holds the error would hold the workers too
            self.executor.shutdown()
            raise

    def _start(self, setup: EngineSetup, phases: Phases) -> None:
        """All of the boot that comes after the model's loading."""
        phases.mark("load model")
        kv_cache_config, max_model_len = self._size_kv_cache(setup)
        phases.mark("profile memory")
        self.executor.initialize_from_config(kv_cache_config, max_model_len)
        phases.mark("create KV cache")
        self.executor.warm_up()
        phases.mark("warm up")
        if self.executor.capture_model():
            phases.mark("capture graphs")
        step_size = self._size_step(setup, phases)
        self.scheduler = Scheduler(setup.config, kv_cache_config, max_model_len, step_size)
        self.blocks_ahead = BlocksAhead(
            self.executor.provide_blocks, self.scheduler.kv_cache.pool, kv_cache_config.bytes_per_block
        )
        self._control = ControlOperations(self.scheduler, self.executor)
        self._refused: list[EngineCoreOutput] = []
        stages = setup.config.parallel.pipeline_parallel_size
        self._max_in_flight = stages if stages > 1 else 2 if setup.config.scheduler.async_scheduling else 1
        self._one_runs_at_once = _one_runs_at_once(setup.config)
        self._in_flight: deque[LaunchedStep] = deque()
        self._last_result = 0.0  # time.perf_counter() when the last step's tokens were there
        self.ready = EngineReady(
            max_model_len=max_model_len,
            max_num_batched_tokens=step_size.tokens,
            num_kv_blocks=kv_cache_config.num_blocks,
            block_size=kv_cache_config.block_size,
            kv_cache_bytes=kv_cache_config.num_blocks * kv_cache_config.bytes_per_block,
            phases=phases.all(),
        )
        phases.log(logger)

    def add_requests(self, message: AddRequests) -> None:
        self._refused += self.scheduler.add_requests(message)

    def abort_requests(self, message: AbortRequests) -> None:
        self.scheduler.finish_requests(message.request_ids)

    def call(self, message: UtilityCall) -> UtilityReply:
        """Run a control operation; its error becomes the reply, never the engine's end."""
        return self._control.call(message)

    def has_work(self) -> bool:
        return self.scheduler.has_unfinished_requests() or bool(self._in_flight) or bool(self._refused)

    def step(self) -> EngineCoreOutputs:
        """What the oldest step in flight gave, after launching as many as may be, and the refusals since the last one.

        The caller sends these outputs while the next step, if one could be launched, is computed.
        """
        self._launch_steps()
        outputs = self._finish_step(self._in_flight.popleft()) if self._in_flight else EngineCoreOutputs([])
        if self._refused:
            outputs.outputs += self._refused
            outputs.urgent = True
            self._refused = []
        return outputs

    def close(self) -> None:
        self.executor.shutdown()

    def _launch_steps(self) -> None:
        while self.scheduler.has_unfinished_requests():
            at_once = self._one_runs_at_once and len(self.scheduler.requests) == 1
            if len(self._in_flight) >= (1 if at_once else self._max_in_flight):
                return
            started = time.perf_counter()
            work = self.scheduler.schedule()
            if not work.num_scheduled_tokens:
                if not self._in_flight:
                    raise ServerError(f"no request can be scheduled: {self.scheduler.stats()}")
                return  # all requests wait for their last tokens
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("step %s", work.annotation)
            launched = time.perf_counter()
            forward = self.executor.execute_model(work, at_once)
            tokens = self.executor.sample_tokens(at_once)
            self._in_flight.append(LaunchedStep(work, forward, tokens, launched, launched - started))

    def _finish_step(self, step: LaunchedStep) -> EngineCoreOutputs:
        """Wait for a step and apply its result. If it raised, its requests are ended, not the engine."""
        try:
            result = step.result()
        except EngineDeadError:
            raise
        except Exception as error:
            logger.exception("a step failed; its requests are ended, the engine goes on")
            for later in (step, *self._in_flight):  # not to be reported, and nothing may be launched beside them
                later.settle()
            self._in_flight.clear()
            return self.scheduler.fail_step(step.work, f"the model step failed: {type(error).__name__}: {error}")
        begun, self._last_result = max(step.launched, self._last_result), time.perf_counter()
        outputs = self.scheduler.update_from_output(step.work, result)
        if outputs.stats is not None:
            outputs.step = step_stats(step.work, step.schedule_s, begun, self._last_result)
        return outputs

    def _size_kv_cache(self, setup: EngineSetup) -> tuple[KVCacheConfig, int]:
        """The pool's layout, and max_model_len cut to what it can hold."""
        scheduler, cache, model = setup.config.scheduler, setup.config.cache, setup.config.model
        assert scheduler.max_num_seqs is not None
        assert scheduler.max_num_batched_tokens is not None
        assert model.max_model_len is not None
        available = self.executor.determine_available_memory()
        config = make_kv_cache_config(
            self.executor.get_kv_cache_specs(),
            cache.block_size,
            available,
            model.max_model_len,
            scheduler.max_num_seqs,
            scheduler.max_num_batched_tokens,
            setup.config.parallel.pipeline_parallel_size,
        )
        fitted = longest_sequence(
            config.groups,
            config.block_size,
            config.num_blocks,
            scheduler.max_num_batched_tokens,
            model.max_model_len,
        )
        if fitted < model.max_model_len:
            blocks = 1 + blocks_per_sequence(
                config.groups, config.block_size, model.max_model_len, scheduler.max_num_batched_tokens
            )
            _warn_about_cut(model.max_model_len, fitted, config, blocks * config.bytes_per_block)
        return config, fitted

    def _size_step(self, setup: EngineSetup, phases: Phases) -> StepSize:
        """How much prefill a step holds: as much as its buffers, or as the latency target allows."""
        scheduler = setup.config.scheduler
        assert scheduler.max_num_batched_tokens is not None
        if not scheduler.itl_target_ms:
            return StepSize(scheduler.max_num_batched_tokens)
        size, reason = step_size_for(
            self.executor.time_prefill(),
            scheduler.itl_target_ms,
            scheduler.max_num_batched_tokens,
            setup.config.cache.block_size,
        )
        logger.info("chose %s", reason)
        phases.mark("time prefill")
        return size


def _one_runs_at_once(config: EngineConfig) -> bool:
    """Whether steps of the only request run on the caller's thread. Not if the worker's thread has cores of its own."""
    parallel, runtime = config.parallel, config.runtime
    return runtime.device == "cpu" and runtime.cpu_cores is None and parallel.distributed_executor_backend == "uni"


def _warn_about_cut(wanted: int, fitted: int, config: KVCacheConfig, bytes_for_wanted: int) -> None:
    logger.warning(
        "max_model_len is cut from %d to %d: the KV cache of %.2f GiB (%d blocks of %d tokens) holds no longer one. "
        "To keep %d: give the cache more memory (kv_cache_memory_bytes=%d), free memory on this machine, "
        "or set max_model_len=%d yourself to silence this warning.",
        wanted,
        fitted,
        config.num_blocks * config.bytes_per_block / 2**30,
        config.num_blocks,
        config.block_size,
        wanted,
        bytes_for_wanted,
        fitted,
    )
