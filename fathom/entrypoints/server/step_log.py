"""StepLog: the engine's last steps, for those who watch. A step costs an append as long as nobody does."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice

from fathom.entrypoints.server.protocol.steps import EngineState, StepRecord
from fathom.frontend.stats import EngineObserver
from fathom.step import annotate
from fathom.wire.messages import EngineCoreOutputs, SchedulerStats, StepStats

KEPT_STEPS = 200


class StepLog(EngineObserver):
    """Keeps the last KEPT_STEPS steps, and wakes those who wait for the next one.

    num_steps: all that there were. latest: the newest numbers of the scheduler, None before the first step.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.latest: SchedulerStats | None = None
        self._kept: deque[tuple[StepStats, SchedulerStats, SchedulerStats | None]] = deque(maxlen=KEPT_STEPS)
        self._watchers: set[asyncio.Event] = set()

    def step(self, step: EngineCoreOutputs) -> None:
        """Take in one step, with the scheduler's numbers after it and before it."""
        if step.step is None or step.stats is None:
            return
        self._kept.append((step.step, step.stats, self.latest))
        self.latest = step.stats
        self.num_steps += 1
        for woken in self._watchers:
            woken.set()

    def new_engine(self) -> None:
        """The steps from now on are another engine's, which counts from 0."""
        self.latest = None

    def since(self, number: int) -> tuple[list[StepRecord], int]:
        """The kept steps after the one of this number, and how many of them are no longer kept."""
        num_new = self.num_steps - number
        num_kept = min(num_new, len(self._kept))
        first = self.num_steps - num_kept + 1
        new = islice(self._kept, len(self._kept) - num_kept, None)
        return [_record(first + index, *kept) for index, kept in enumerate(new)], num_new - num_kept

    @property
    def num_watchers(self) -> int:
        return len(self._watchers)

    def watch(self) -> asyncio.Event:
        """An event that each step sets, until `unwatch`."""
        woken = asyncio.Event()
        self._watchers.add(woken)
        return woken

    def unwatch(self, woken: asyncio.Event) -> None:
        """Wake this one no more."""
        self._watchers.discard(woken)


def state_of(stats: SchedulerStats) -> EngineState:
    """The scheduler's numbers as clients see them."""
    return EngineState(
        running=stats.num_running,
        waiting=stats.num_waiting,
        blocks_used=stats.num_blocks_used,
        blocks_cached=stats.num_blocks_cached,
        prefix_queries=stats.prefix_cache_queries,
        prefix_hits=stats.prefix_cache_hits,
        preemptions=stats.num_preemptions,
    )


def _record(number: int, step: StepStats, stats: SchedulerStats, before: SchedulerStats | None) -> StepRecord:
    preemptions = stats.num_preemptions - (before.num_preemptions if before is not None else 0)
    batch = (step.context_requests, step.context_tokens, step.generation_requests, step.generation_tokens)
    return StepRecord(
        number=number,
        time=step.end_time,
        annotation=annotate(*batch),
        context_requests=batch[0],
        context_tokens=batch[1],
        generation_requests=batch[2],
        generation_tokens=batch[3],
        schedule_ms=_ms(step.schedule_s),
        model_ms=_ms(step.model_s),
        update_ms=_ms(step.update_s),
        prefix_hits=step.prefix_hits,
        preemptions=preemptions,
        state=state_of(stats),
    )


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)
