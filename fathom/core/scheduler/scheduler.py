"""The scheduler: decides, before each step, how many tokens of which requests it computes.

There is no prefill phase and no decode phase. Each request has `num_tokens` that exist and `num_computed_tokens`
whose keys and values are in the cache; a step closes part of that deficit, for as many requests as the token
budget, the number of rows and the free KV blocks allow. A request that lacks one token, because it generates, gets
it in every step; what is left of the budget goes to those that lack more, the running ones first, in order of
service, then to waiting ones, which it admits (`prefill_room` says how much to which). If a running request needs a
block and none is free, the last one in the order gives its blocks back and waits again, to be recomputed later. The
first in the order is thus never held up, and since no request is accepted that does not fit alone, every request ends.

Steps may be scheduled ahead: while earlier ones are in flight, the tokens that they will sample count as existing,
and the worker, which runs steps in order, knows their values by the time it needs them. If such a token turns out to
end its request, or the request has been aborted, what later steps in flight compute for it is ignored. Blocks can be
given back and handed out again at any time all the same: a step's writes come after those of every step before it.

With several pipeline stages a request waits for its token before it is scheduled again, since the first stage learns
of it from the scheduler, and a step takes only its part of the requests: while one part is in one stage, another
part is in the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from fathom.config import EngineConfig
from fathom.core.kv_cache.manager import KVCacheManager
from fathom.core.request import ATTENDED, Request, RequestStatus
from fathom.core.scheduler.admission import Admission
from fathom.core.scheduler.in_flight import StepInFlight, StepsInFlight
from fathom.core.scheduler.prefill_room import PrefillRoom, StepSize
from fathom.core.scheduler.running import ORDER_OF_SERVICE, RunningRequests
from fathom.core.scheduler.update import StepUpdate
from fathom.kv_cache_spec import KVCacheConfig
from fathom.step import ModelRunnerOutput, SchedulerOutput
from fathom.wire.messages import (
    AddRequests,
    EngineCoreOutput,
    EngineCoreOutputs,
    FinishReason,
    SchedulerStats,
)


class Scheduler:
    """Owns every request of the engine from arrival to end, and the KV blocks they hold.

    Args:
        config: a resolved config.
        kv_cache_config: the pool's layout.
        max_model_len: longest sequence, as fitted to the pool.
        step_size: how much prefill a step holds; by default as much as max_num_batched_tokens allows.
    """

    def __init__(
        self,
        config: EngineConfig,
        kv_cache_config: KVCacheConfig,
        max_model_len: int,
        step_size: StepSize | None = None,
    ) -> None:
        options = config.scheduler
        assert options.max_num_seqs is not None, "the config is not resolved"
        assert options.max_num_batched_tokens is not None, "the config is not resolved"
        assert options.max_long_partial_prefills is not None, "the config is not resolved"
        self.max_num_seqs = options.max_num_seqs
        self.max_num_batched_tokens = options.max_num_batched_tokens
        self.max_model_len = max_model_len
        self.step_size = step_size or StepSize(self.max_num_batched_tokens)
        self.kv_cache = KVCacheManager(
            kv_cache_config,
            enable_prefix_caching=config.cache.enable_prefix_caching,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
        self.requests: dict[str, Request] = {}
        self._in_flight = StepsInFlight()
        self.running = RunningRequests(self._in_flight)
        self._admission = Admission(
            self.kv_cache,
            self.running,
            self.step_size,
            max_num_seqs=self.max_num_seqs,
            max_long=options.max_long_partial_prefills,
            chunked_prefill=options.enable_chunked_prefill,
        )
        self.waiting = self._admission.waiting
        self.num_preemptions = 0
        self._longest_chunk = options.long_prefill_token_threshold or self.max_num_batched_tokens
        self._by_priority = options.scheduling_policy == "priority"
        self._report_stats = not config.runtime.disable_log_stats
        self._num_arrived = 0
        self._left_batch: list[str] = []  # ids whose rows the worker must drop
        self._num_stages = config.parallel.pipeline_parallel_size
        self._sampled: dict[str, tuple[int, int]] = {}  # tokens that the first stages are yet to be told of

    # ---------------------------------------------------------------- arrivals and departures

    def add_requests(self, message: AddRequests) -> list[EngineCoreOutput]:
        """Queue requests; returns an error output for each that could never be scheduled or is a duplicate."""
        refused = []
        for source in message.requests:
            prompt = message.prompts[source.prompt]
            problem = self._cannot_serve(source.request_id, len(prompt))
            if problem is not None:
                refused.append(_error_output(source.request_id, problem))
                continue
            params, priority = message.params[source.params], source.priority if self._by_priority else 0
            request = Request(source, prompt, params, self._num_arrived, priority, self.max_model_len)
            self._num_arrived += 1
            self.requests[request.request_id] = request
            self.waiting.push(request)
        return refused

    def finish_requests(self, request_ids: Iterable[str]) -> list[str]:
        """Drop requests, wherever they are; returns those that existed. Unknown ids are ignored."""
        finished = []
        for request_id in request_ids:
            request = self.requests.get(request_id)
            if request is not None:
                self._finish(request)
                finished.append(request_id)
        return finished

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    # ---------------------------------------------------------------- one step

    def schedule(self) -> SchedulerOutput:
        """Choose the step's work and advance each chosen request's cursor over it.

        The cursor is ahead of the worker from here until `update_from_output`, which is to be called once for each
        step, in order. A step without tokens is none: it is not in flight and not to be run.
        """
        looked_at = self._to_look_at()
        output = SchedulerOutput(
            num_scheduled_tokens=dict.fromkeys(self._in_flight.coasting, 1),
            total_num_scheduled_tokens=0,
            new_requests=[],
            new_block_ids={},
            finished_request_ids=[],
            num_context_requests=0,
            num_context_tokens=0,
        )
        step = StepInFlight(output, self._num_arrived, {}, [])
        if looked_at or self.waiting:
            limit = self.max_num_batched_tokens
            room = PrefillRoom(self.step_size, limit, self._longest_chunk, self.running, looked_at)
            preempted = self._schedule_running(step, room, looked_at)
            if not preempted:
                self._admission.admit(step, room, self._max_requests())
                self._admission.give_rest(output, room)
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        if output.num_scheduled_tokens:
            self._launch(step)
        return output

    def update_from_output(self, step: SchedulerOutput, result: ModelRunnerOutput) -> EngineCoreOutputs:
        """Apply what the step produced: append tokens, end requests, and say what to tell the caller."""
        in_flight = self._in_flight
        if in_flight.coasting:
            ending = in_flight.may_end(result.sampled_token_ids)
            if ending:
                self.running.attend_all(ending)
            if result.errors:
                self.running.attend_all([in_flight.coasting[key] for key in result.errors if key in in_flight.coasting])
        return self._update(self._in_flight.land(step, result.sampled_token_ids), result)

    def fail_step(self, step: SchedulerOutput, message: str) -> EngineCoreOutputs:
        """End every request of a step that could not be executed; the others go on.

        Steps in flight behind it ran on rows that it left half done. They are not to be reported any more; those of
        their requests that were not in the failed step are computed anew.
        """
        self.running.attend_all(list(self._in_flight.coasting.values()))
        result = ModelRunnerOutput({}, errors=dict.fromkeys(step.num_scheduled_tokens, message))
        failed = self._in_flight.land(step, {})
        self._forget(failed)
        outputs = self._update(failed, result)
        while self._in_flight:
            later = self._in_flight.drop()
            self._forget(later)
            for request in later.attended.values():
                self._recompute(request)
        return outputs

    def stats(self) -> SchedulerStats:
        pool = self.kv_cache.pool
        num_blocks = pool.num_blocks - 1
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=pool.usage,
            prefix_cache_queries=self.kv_cache.prefix_cache_queries,
            prefix_cache_hits=self.kv_cache.prefix_cache_hits,
            num_preemptions=self.num_preemptions,
            num_steps=self._in_flight.num_launched,
            num_blocks=num_blocks,
            num_blocks_used=num_blocks - pool.num_free,
            num_blocks_cached=pool.num_free_cached,
        )

    def check_invariants(self) -> None:
        """Raise AssertionError unless requests, queues and blocks agree. For tests and idle moments."""
        assert len(self.requests) == len(self.running) + len(self.waiting), "a request is lost"
        assert len(self.running) <= self.max_num_seqs
        assert all(request.status is RequestStatus.RUNNING for request in self.running)
        assert self._in_flight or not any(request.num_awaited_tokens for request in self.requests.values())
        self.running.check_invariants()
        self.kv_cache.check_invariants(list(self.running))

    # ---------------------------------------------------------------- pass 1: running requests

    def _to_look_at(self) -> list[Request]:
        """Those that the step attends to, and those that coast and need a block or have filled one; in order."""
        due, near_end = self._in_flight.due()
        if near_end:
            self.running.attend_all(near_end)
        attended = self.running.attended
        return sorted([*attended, *due], key=ORDER_OF_SERVICE) if due else attended

    def _schedule_running(self, step: StepInFlight, room: PrefillRoom, looked_at: list[Request]) -> bool:
        """Give each running request its token or its next chunk, in order; returns whether anyone was preempted.

        Those that coast have their token; they get what blocks it takes.
        """
        preempted = False
        index = 0
        output, in_flight = step.work, self._in_flight
        scheduled = output.num_scheduled_tokens
        allocate = self.kv_cache.allocate_slots
        staged, max_requests = self._num_stages > 1, self._max_requests()
        while index < len(looked_at) and len(step.attended) < max_requests:
            request = looked_at[index]
            index += 1
            if staged and request.num_awaited_tokens:
                continue
            missing = num_new = len(request.token_ids) + request.num_awaited_tokens - request.num_computed_tokens
            coasts, num_behind = request.coasts_from != ATTENDED, 0
            if coasts:
                num_behind = in_flight.num_behind(request)
                if self.kv_cache.fills_block(request, num_behind + 1):
                    in_flight.catch_up(request)
                    num_behind = in_flight.num_behind(request)
            elif missing > 1:
                room.num_passed = index - 1
                num_new = room.take(request, request.num_computed_tokens, missing)
            elif request.num_awaited_tokens and request.ends_by_length():
                num_new = 0
            if not num_new:
                continue
            settled = request.num_computed_tokens + num_behind + num_new <= request.settled_until
            blocks = () if settled else allocate(request, num_new, num_behind)
            while blocks is None:
                preempted = True
                victim = self.running.last
                self._preempt(victim)
                scheduled.pop(victim.request_id, None)  # it would have coasted
                if victim is request:
                    return True
                if looked_at[-1] is victim:
                    looked_at.pop()
                blocks = allocate(request, num_new, num_behind)
            if blocks:
                output.new_block_ids[request.request_id] = blocks
            if coasts:
                in_flight.go_on(request)
                continue
            if request.num_computed_tokens < request.num_prompt_tokens:
                output.num_context_requests += 1
                output.num_context_tokens += num_new
            scheduled[request.request_id] = num_new
            step.attended[request.request_id] = request
            request.num_computed_tokens += num_new
            if num_new == missing:
                request.num_awaited_tokens += 1
        room.num_passed = index
        return preempted

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.kv_cache.free(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        request.status = RequestStatus.PREEMPTED
        self.num_preemptions += 1
        self._left_batch.append(request.request_id)
        self.waiting.push(request)

    # ---------------------------------------------------------------- helpers

    def _max_requests(self) -> int:
        """Most requests of one step: all, or a stage's part of them."""
        return -(-len(self.requests) // self._num_stages)

    def _cannot_serve(self, request_id: str, num_prompt_tokens: int) -> str | None:
        if request_id in self.requests:
            return f"request id {request_id!r} is in use"
        if not 0 < num_prompt_tokens < self.max_model_len:
            return (
                f"a prompt of {num_prompt_tokens} tokens cannot be served: "
                f"it needs between 1 and {self.max_model_len - 1} tokens"
            )
        return None

    def _launch(self, step: StepInFlight) -> None:
        output = step.work
        output.finished_request_ids, self._left_batch = self._left_batch, []
        output.sampled_tokens, self._sampled = self._sampled, {}
        step.registered = self.kv_cache.pool.take_newly_registered()
        self._in_flight.launch(step)
        if self._num_stages == 1:
            self.running.let_coast()

    def _update(self, step: StepInFlight, result: ModelRunnerOutput) -> EngineCoreOutputs:
        update = StepUpdate()
        errors, sampled = result.errors, result.sampled_token_ids
        # In order of service whoever has joined it late, since blocks that are freed first are evicted first.
        for request in sorted(step.attended.values(), key=ORDER_OF_SERVICE):
            if request.status is RequestStatus.FINISHED:
                continue
            if errors and request.request_id in errors:
                self._fail(request, errors[request.request_id], update)
            elif update.apply(request, result):
                if request.status is RequestStatus.RUNNING:
                    # This step has computed all tokens but the new one; a later step's work is not relied upon.
                    self.kv_cache.register_full_blocks(request, request.num_tokens - 1)
                self._finish(request)
            elif self._num_stages > 1 and request.request_id in sampled:
                self._sampled[request.request_id] = request.num_tokens - 1, request.token_ids[-1]
        if errors:
            self._fail_others(step, errors, update)
        stats = self.stats() if self._report_stats else None
        return update.outputs(result, step.attended, self._in_flight.num_watched > 0, stats)

    def _fail_others(self, step: StepInFlight, errors: dict[str, str], update: StepUpdate) -> None:
        """Those of the worker's rows that had no tokens in the step."""
        for request_id in errors.keys() - step.attended.keys():
            request = self.requests.get(request_id)
            if request is not None and request.arrival < step.num_arrived:
                self._fail(request, errors[request_id], update)

    def _forget(self, step: StepInFlight) -> None:
        """A step's work may not have been done: its blocks may not be filled, and its rows not be dropped."""
        self.kv_cache.pool.unregister(step.registered)
        self._left_batch += step.work.finished_request_ids
        self._sampled = step.work.sampled_tokens | self._sampled

    def _recompute(self, request: Request) -> None:
        """Start a request again with the tokens that it has; those that it awaited are lost."""
        request.num_awaited_tokens = 0
        if request.status is RequestStatus.RUNNING:
            self._preempt(request)

    def _fail(self, request: Request, message: str, update: StepUpdate) -> None:
        update.fail(request, message)
        self._finish(request, keep_cached=False)

    def _finish(self, request: Request, *, keep_cached: bool = True) -> None:
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
            self.kv_cache.free(request, keep_cached=keep_cached)
            self._left_batch.append(request.request_id)
        else:
            self.waiting.remove(request)
        request.status = RequestStatus.FINISHED
        del self.requests[request.request_id]


def _error_output(request_id: str, message: str) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, [], finish_reason=FinishReason.ERROR, error=message)
