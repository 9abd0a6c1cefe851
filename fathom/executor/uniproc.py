"""UniprocExecutor: one worker in the engine's own process, on the caller's thread or on one of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fathom.executor.base import Executor, Reply, public_method
from fathom.hardware import limit_openmp_spinning
from fathom.wire.messages import EngineSetup


class UniprocExecutor(Executor):
    """Loads the model on construction.

    With async scheduling the worker is made on a thread and runs there; kernels release the interpreter, and the
    scheduler runs beside them. Without, or if that is asked for, a call has run when `submit` returns.
    """

    def __init__(self, setup: EngineSetup) -> None:
        limit_openmp_spinning()
        threaded = setup.config.scheduler.async_scheduling
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker") if threaded else None
        self._worker: Any = self._start(_make_worker, setup).result()

    def submit(self, method: str, args: list[Any] | None = None, at_once: bool = False) -> Reply:
        return self._start(_call_one, public_method(self._worker, method), args or (), at_once=at_once)

    def shutdown(self) -> None:
        self._start(self._worker.shutdown).result()
        if self._thread is not None:
            self._thread.shutdown()

    def _start(self, function: Callable[..., Any], *args: Any, at_once: bool = False) -> Reply:
        if at_once or self._thread is None:
            return _Done(function, args)
        return self._thread.submit(function, *args)


class _Done:
    """A call that has been made: a Future without the locks that nobody would wait at."""

    __slots__ = ("_error", "_value")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._error: Exception | None = None
        try:
            self._value = function(*args)
        except Exception as error:
            self._error = error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value


def _call_one(function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
    """The results of all workers: there is one."""
    return [function(*args)]


def _make_worker(setup: EngineSetup) -> Any:
    from fathom.worker.worker import Worker  # torch starts here

    return Worker(setup)
