"""Putting Ctrl-C off for a moment: half a message on a socket would spoil the ones that follow."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class InterruptsDeferred:
    """`with InterruptsDeferred():` a SIGINT inside takes effect at its end. Costs about a microsecond."""

    def __enter__(self) -> None:
        self._previous: Any = None
        self._caught = False
        # Only the main thread is ever interrupted, and only there may handlers be changed.
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.getsignal(signal.SIGINT)
        if self._previous is not None:  # else it is not Python's, and could not be put back
            signal.signal(signal.SIGINT, self._catch)

    def __exit__(self, *exc_info: Any) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if self._caught:
            signal.raise_signal(signal.SIGINT)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self._caught = True
