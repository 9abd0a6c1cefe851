"""Heartbeat: asks the engine for its numbers again and again. An engine that stops answering is stalled."""

from __future__ import annotations

import asyncio
import contextlib
import time

from fathom.allocator import HeapTrimmer
from fathom.errors import EngineDeadError
from fathom.frontend.async_engine import AsyncLLM
from fathom.frontend.metrics import PrometheusObserver
from fathom.wire.messages import SchedulerStats

_INTERVAL_S = 1.0


class Heartbeat:
    """At most one question is open at a time. An answer also sets the gauges, which no step does once work has ended.

    Its beat is also when this process tidies up.

    Args:
        stall_timeout_s: an engine that has not answered for this long is stalled. A step may take a while, and the
            engine answers between steps.
    """

    def __init__(self, engine: AsyncLLM, metrics: PrometheusObserver, stall_timeout_s: float) -> None:
        self._engine = engine
        self._metrics = metrics
        self._timeout_s = stall_timeout_s
        self._answered = time.monotonic()
        self._asked = asyncio.Event()
        self._beat = asyncio.Condition()
        self._heap = HeapTrimmer()
        self.stats = SchedulerStats(0, 0, 0.0, 0, 0, 0, 0)

    @property
    def silence_s(self) -> float:
        """Seconds since the engine's last answer."""
        return time.monotonic() - self._answered

    @property
    def stalled(self) -> bool:
        return self.silence_s > self._timeout_s

    async def run(self) -> None:
        """Ask until the engine is gone."""
        interval_s = min(_INTERVAL_S, self._timeout_s / 4)
        with contextlib.suppress(EngineDeadError):
            while True:
                self._asked.clear()
                stats = SchedulerStats(**await self._engine.get_stats())
                self._answered = time.monotonic()
                self.stats = stats
                self._metrics.scheduler(stats)
                self._heap.tick()
                async with self._beat:
                    self._beat.notify_all()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(interval_s):
                        await self._asked.wait()

    async def fresh(self, wait_s: float = 0.5) -> SchedulerStats:
        """The engine's numbers of now; the last known ones if it does not answer soon."""
        self._asked.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s), self._beat:
                await self._beat.wait()
        return self.stats
