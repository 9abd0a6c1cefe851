"""HangWatch: tells a worker that will never answer from one that has much to do.

A call in progress is no sign of a hang, however long it takes; a process that does nothing at all is. So what counts
is that a worker owes an answer, and that for a while its process has neither computed nor waited for a disk. Then it
either is stopped, or waits for another rank (its Python stack says so, and the other one is to blame), or hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import psutil

from fathom.dist.place import Place

IDLE_S = 1.0
"""For how long a worker that owes an answer must do nothing to be looked into."""
LOOK_S = 0.25
_COMPUTED_S = 0.02  # two ticks of the system's clock of CPU time
_BUSY = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP, psutil.STATUS_WAKING)
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_WAITS_FOR_RANKS = ("/fathom/dist/", "/torch/distributed/")
_WAITS_FOR_CALLS = "/fathom/executor/"


class Watched(Protocol):
    """A worker that can be looked at."""

    @property
    def place(self) -> Place: ...

    @property
    def num_finished_calls(self) -> int: ...

    def cpu_seconds(self) -> float:
        """What it has computed so far."""

    def status(self) -> str:
        """One of psutil's words for what the thread does that runs calls."""

    def ask_for_stack(self) -> str:
        """The Python stack of this thread, innermost call first; empty if it is not known."""


W = TypeVar("W", bound=Watched)


@dataclass(slots=True)
class _Seen:
    """When a worker was last seen to do something, and what it had computed and finished by then."""

    when: float
    cpu_seconds: float
    finished: int


class HangWatch(Generic[W]):
    """Looks at workers while somebody waits for them.

    Args:
        judges_idleness: whether a worker that computes nothing may be judged by its stack; not where the work is a
            GPU's, which leaves the process idle. Then only stopped processes are found.
    """

    def __init__(self, workers: Sequence[W], judges_idleness: bool) -> None:
        self._workers = workers
        self._judges_idleness = judges_idleness
        self._seen: dict[int, _Seen] = {}
        self._next_look = 0.0

    def find(self, num_calls: int, method_of: Callable[[int], str]) -> tuple[W, str] | None:
        """A worker that hangs, and what is known about it.

        Args:
            num_calls: calls that every worker has been given.
            method_of: a call's number -> the method that it calls.
        """
        now = time.monotonic()
        if now < self._next_look:
            return None
        self._next_look = now + LOOK_S
        for worker in self._workers:
            finished = worker.num_finished_calls
            if finished >= num_calls:
                self._seen.pop(worker.place.rank, None)
            elif self._is_idle(worker, finished, now):
                problem = self._problem(worker, method_of(finished + 1))
                if problem is not None:
                    return worker, problem
                del self._seen[worker.place.rank]
        return None

    def _is_idle(self, worker: W, finished: int, now: float) -> bool:
        seen = self._seen.get(worker.place.rank)
        computed, status = worker.cpu_seconds(), worker.status()
        if seen is None or status in _BUSY or finished != seen.finished or computed > seen.cpu_seconds + _COMPUTED_S:
            self._seen[worker.place.rank] = _Seen(now, computed, finished)
            return False
        return now - seen.when >= IDLE_S

    def _problem(self, worker: W, method: str) -> str | None:
        if worker.status() in _STOPPED:
            return "is stopped (SIGSTOP, or a debugger)"
        if method != "execute_model" or not self._judges_idleness:
            return None  # code that is not ours may wait for something outside
        stack = worker.ask_for_stack()
        frames = [line for line in stack.splitlines() if line.lstrip().startswith("File ")]
        if not frames or _WAITS_FOR_CALLS in frames[0]:
            return None
        if any(place in frame for frame in frames for place in _WAITS_FOR_RANKS):
            return None
        return f"hangs: it has done nothing for {IDLE_S:g} s in the middle of {method}\n{stack}"
