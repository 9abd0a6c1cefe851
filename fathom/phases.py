"""Phases: the clock of a boot. Each phase begins where the one before it ended, so they add up to the whole."""

from __future__ import annotations

import logging
import time


class Phases:
    """Names the stretches of time since `start` (a time.time(); now, if left out)."""

    def __init__(self, start: float | None = None) -> None:
        self._last = time.time() if start is None else start
        self._phases: list[tuple[str, float]] = []

    def mark(self, name: str) -> None:
        """End the phase that has been running and call it `name`."""
        now = time.time()
        self._phases.append((name, now - self._last))
        self._last = now

    def all(self) -> list[tuple[str, float]]:
        """(name, seconds) of the phases so far, in order."""
        return list(self._phases)

    def log(self, logger: logging.Logger) -> None:
        """One line for each phase, and their sum."""
        for name, seconds in self._phases:
            logger.info("  %-22s %6.2f s", name, seconds)
        names = ", ".join(name for name, _ in self._phases)
        logger.info("init engine (%s) took %.2f s", names, sum(seconds for _, seconds in self._phases))
