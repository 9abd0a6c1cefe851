"""StatsLogger: now and then, one line about what the engine is doing."""

from __future__ import annotations

import logging
import time

from fathom.wire.messages import EngineCoreOutputs, SchedulerStats

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0


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
