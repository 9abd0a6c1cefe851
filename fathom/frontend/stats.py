"""Watching the engine: what an EngineObserver is told, and StatsLogger, which now and then says it in one line."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from fathom.wire.messages import EngineCoreOutputs, SchedulerStats

if TYPE_CHECKING:
    from fathom.frontend.output_processor import RequestState

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


class EngineObserver:
    """Is told of every step and of what becomes of each answer. This one does nothing."""

    def step(self, step: EngineCoreOutputs) -> None:
        """The engine has made a step, and its outputs have been taken in."""

    def tokens(self, state: RequestState, num_new: int, gap_s: float | None) -> None:
        """An answer got tokens, gap_s after those before; None: they are its first."""

    def finished(self, state: RequestState) -> None:
        """An answer has ended, for the reason that the state holds."""


class Observers(EngineObserver):
    """Tells several observers, in their order."""

    def __init__(self, *observers: EngineObserver) -> None:
        self._observers: list[EngineObserver] = []
        self._told_of_tokens: list[EngineObserver] = []  # each token costs each of them a call
        for observer in observers:
            self.add(observer)

    def add(self, observer: EngineObserver) -> None:
        """One more, the last to be told."""
        self._observers.append(observer)
        if type(observer).tokens is not EngineObserver.tokens:
            self._told_of_tokens.append(observer)

    def step(self, step: EngineCoreOutputs) -> None:
        for observer in self._observers:
            observer.step(step)

    def tokens(self, state: RequestState, num_new: int, gap_s: float | None) -> None:
        for observer in self._told_of_tokens:
            observer.tokens(state, num_new, gap_s)

    def finished(self, state: RequestState) -> None:
        for observer in self._observers:
            observer.finished(state)


class StatsLogger:
    """Counts tokens from step to step and logs every INTERVAL_S seconds while there is work.

    `last` is the newest SchedulerStats, None before the first step or with statistics switched off.
    """

    def __init__(self) -> None:
        self.last: SchedulerStats | None = None
        self._since = time.monotonic()
        self._num_tokens = 0

    def add(self, step: EngineCoreOutputs) -> None:
        """Take in one step's outputs."""
        if step.stats is None:
            return
        self.last = step.stats
        self._num_tokens += sum(len(output.new_token_ids) for output in step.outputs)
        self._num_tokens += sum(map(len, step.tokens.values()))
        elapsed = time.monotonic() - self._since
        if elapsed >= INTERVAL_S:
            self._log(step.stats, elapsed)
            self._since, self._num_tokens = time.monotonic(), 0

    def _log(self, stats: SchedulerStats, elapsed: float) -> None:
        queries = stats.prefix_cache_queries
        logger.info(
            "%.1f tokens/s; %d running, %d waiting; KV cache %.1f %% in use, prefix hits %.1f %%, %d preemptions",
            self._num_tokens / elapsed,
            stats.num_running,
            stats.num_waiting,
            100 * stats.kv_cache_usage,
            100 * stats.prefix_cache_hits / queries if queries else 0.0,
            stats.num_preemptions,
        )
