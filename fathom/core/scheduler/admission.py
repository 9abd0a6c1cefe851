"""Admission: which waiting requests enter a step, and what of their prompts."""

from __future__ import annotations

import time

import numpy as np

from fathom.core.kv_cache.manager import Blocks, KVCacheManager
from fathom.core.request import Request, RequestStatus
from fathom.core.scheduler.in_flight import StepInFlight
from fathom.core.scheduler.prefill_room import PrefillRoom, StepSize
from fathom.core.scheduler.queues import WaitingRequests
from fathom.core.scheduler.running import RunningRequests
from fathom.step import NewRequestData, SchedulerOutput


class Admission:
    """Takes requests from `waiting` to the running ones.

    Args:
        max_num_seqs: most running requests.
        max_long: prompts longer than a step that may be under way at once.
        chunked_prefill: whether a prompt may be computed in several steps.
    """

    def __init__(
        self,
        kv_cache: KVCacheManager,
        running: RunningRequests,
        step_size: StepSize,
        *,
        max_num_seqs: int,
        max_long: int,
        chunked_prefill: bool,
    ) -> None:
        self.waiting = WaitingRequests(self._is_long)
        self._kv_cache = kv_cache
        self._running = running
        self._step_size = step_size
        self._max_num_seqs = max_num_seqs
        self._max_long = max_long
        self._chunked_prefill = chunked_prefill

    def admit(self, step: StepInFlight, room: PrefillRoom, max_requests: int) -> None:
        """Admit waiting requests in order until something runs out. max_requests: of the whole step."""
        while self.waiting and len(self._running) < self._max_num_seqs and not room.is_used_up:
            if len(step.work.num_scheduled_tokens) >= max_requests:
                return
            request, cached, num_cached = self._next_to_admit(room)
            if request is None:
                return
            missing = request.num_tokens - num_cached
            if not self._chunked_prefill and not room.holds(num_cached, missing):
                return
            if not self._kv_cache.can_hold(request, cached):
                return
            num_new = room.take(request, num_cached, missing)
            if not self._take_blocks(request, cached, num_cached, num_new):
                return
            self.waiting.pop(request)
            self._start(request, num_cached, num_new, step)

    def _next_to_admit(self, room: PrefillRoom) -> tuple[Request | None, Blocks, int]:
        """The next waiting request, and what is cached of it; passes over a long prompt while others are under way."""
        for request in self.waiting.heads():
            if request.num_awaited_tokens:  # preempted, and a token of it is still on its way
                break
            cached, num_cached = self._kv_cache.find_cached_prefix(request)
            if room.num_long < self._max_long or not self._step_size.is_long(
                num_cached, request.num_tokens - num_cached
            ):
                return request, cached, num_cached
        return None, (), 0

    def _take_blocks(self, request: Request, cached: Blocks, num_cached: int, num_new: int) -> bool:
        self._kv_cache.admit(request, cached)
        request.num_computed_tokens = num_cached
        if self._kv_cache.allocate_slots(request, num_new) is None:
            self._kv_cache.free(request)
            request.num_computed_tokens = 0
            return False
        return True

    def _start(self, request: Request, num_cached: int, num_new: int, step: StepInFlight) -> None:
        output = step.work
        self._kv_cache.record_lookup(request, num_cached)
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_cached
            request.scheduled_time = time.time()
        request.status = RequestStatus.RUNNING
        self._running.add(request)
        step.attended[request.request_id] = request
        output.new_requests.append(
            NewRequestData(
                request_id=request.request_id,
                token_ids=np.array(request.token_ids, dtype=np.int32),
                num_prompt_tokens=request.num_prompt_tokens,
                num_computed_tokens=num_cached,
                block_ids=self._kv_cache.block_ids(request),
                sampling_params=request.params,
                seed=request.seed,
                choice=request.choice,
            )
        )
        output.num_scheduled_tokens[request.request_id] = num_new
        output.num_context_requests += 1
        output.num_context_tokens += num_new
        request.num_computed_tokens += num_new
        if request.num_computed_tokens == request.num_tokens:
            request.num_awaited_tokens = 1

    def give_rest(self, output: SchedulerOutput, room: PrefillRoom) -> None:
        """Lengthen the first long prompt's chunk by the room that nobody behind it needed."""
        request = room.first_long
        if request is None or room.is_used_up:
            return
        request_id = request.request_id
        taken = output.num_scheduled_tokens.get(request_id)
        if taken is None:  # it could not be admitted
            return
        more = room.take_rest(request, taken)
        # As one chunk, from where it starts: its first token still sees what the window hides from the ones behind.
        request.num_computed_tokens -= taken
        blocks = self._kv_cache.allocate_slots(request, taken + more)
        if blocks is None:
            more = 0
        request.num_computed_tokens += taken + more
        if not request.num_missing:
            request.num_awaited_tokens = 1
        output.num_scheduled_tokens[request_id] = taken + more
        output.num_context_tokens += more
        if not blocks:
            return
        for new in output.new_requests:
            if new.request_id == request_id:
                new.block_ids = self._kv_cache.block_ids(request)
                return
        before = output.new_block_ids.get(request_id)
        output.new_block_ids[request_id] = (
            blocks if before is None else tuple(old + new for old, new in zip(before, blocks, strict=True))
        )

    def _is_long(self, request: Request) -> bool:
        """Whether what is not cached of a waiting request takes more than a step."""
        if not self._step_size.is_long(0, request.num_tokens):
            return False
        _, num_cached = self._kv_cache.find_cached_prefix(request)
        return self._step_size.is_long(num_cached, request.num_tokens - num_cached)
