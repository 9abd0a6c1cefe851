"""Putting Ctrl-C off for a moment: half a message on a socket would spoil the ones that follow."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class InterruptsDeferred:
    """`with InterruptsDeferred():` what SIGINT would do inside is done at its end. Costs about a microsecond."""

    def __enter__(self) -> None:
        self._caught: list[tuple[int, FrameType | None]] = []
        # Only the main thread is ever interrupted, and only there may handlers be changed.
        self._previous: Any = None
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, lambda *call: self._caught.append(call))

    def __exit__(self, *exc_info: Any) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self._caught and callable(self._previous):
            self._previous(*self._caught[0])
