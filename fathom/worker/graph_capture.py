"""GraphCapture: the few calls of torch.cuda that capture work as graphs; all else about graphs is device-free.

    with capture.session():
        capture.begin()
        ...                      launched work is written down, not run
        replay = capture.end()
    replay()                     runs it, on the current stream, without waiting

What was captured has read its Python numbers and addresses once and for all. All graphs share one pool of memory, which
is safe as long as no replay needs what another one's left there: what is to be read afterwards must lie elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

import torch


class GraphCapture(Protocol):
    """Captures stretches of work, one after another. Within a session work between captures runs as usual."""

    def session(self) -> AbstractContextManager[None]:
        """Around all captures; leaves none open, whatever is raised."""

    def begin(self) -> None:
        """From here on work is captured."""

    def end(self) -> Callable[[], None]:
        """Up to here; returns what replays it."""


class TorchGraphCapture:
    """Captures on a CUDA device, on a stream of its own, as capturing demands.

    `CUDAGraph` is used directly: the context manager `torch.cuda.graph` waits for the device and empties the cache
    before each capture, of which there are more than a thousand; once a session will do.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._open: torch.cuda.CUDAGraph | None = None

    @contextlib.contextmanager
    def session(self) -> Iterator[None]:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            if self._open is not None:
                with contextlib.suppress(RuntimeError):  # an error has made the capture invalid
                    self._open.capture_end()
                self._open = None
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()  # what steps before captures have left; no other stream could use it

    def begin(self) -> None:
        self._open = torch.cuda.CUDAGraph()
        # Other threads (a profiler's, a communicator's watchdog) may do what this one must not while it captures.
        self._open.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> Callable[[], None]:
        graph, self._open = self._open, None
        assert graph is not None, "end without begin"
        graph.capture_end()
        return graph.replay
