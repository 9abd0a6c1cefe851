"""Watching actors for hangs: each is asked now and then how it is, and judged as processes here are (hangs.py).

An actor's answer comes from another of its threads. One that is stopped gives none: on this machine the system says so
at once; of one on another machine, which may only be slow to answer, it is believed after SILENT_S.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import Future
from typing import Any

import psutil

from fathom.dist.place import Place
from fathom.executor.hangs import LOOK_S
from fathom.executor.ray_cluster import RayActor
from fathom.executor.ray_worker import CONTROL, Look

SILENT_S = 10.0
"""For how long an actor on another machine that owes an answer may leave questions unanswered."""
_FRESH_S = 2 * LOOK_S
"""How old an answer may be that says where a worker is."""
_STATES = {
    "R": psutil.STATUS_RUNNING,
    "S": psutil.STATUS_SLEEPING,
    "D": psutil.STATUS_DISK_SLEEP,
    "T": psutil.STATUS_STOPPED,
    "t": psutil.STATUS_TRACING_STOP,
}


class WatchedActor:
    """An actor as HangWatch sees it. num_finished_calls is for its owner to keep.

    Args:
        here: the address of this machine.
    """

    def __init__(self, actor: RayActor, here: str) -> None:
        self.num_finished_calls = 0
        self._actor = actor
        self._process = _process_of(actor) if actor.address == here else None
        self._look = Look(0.0, "", "")
        self._seen = time.monotonic()
        self._asked = 0.0
        self._is_asked = False

    @property
    def place(self) -> Place:
        return self._actor.place

    @property
    def name(self) -> str:
        return self._actor.name

    def cpu_seconds(self) -> float:
        """As far as it has told; asks for more."""
        self._ask()
        return self._look.cpu_seconds

    def status(self) -> str:
        status = _STATES.get(self._look.state, psutil.STATUS_SLEEPING)
        if self._process is not None:
            try:
                if self._process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP):
                    return psutil.STATUS_STOPPED
            except psutil.Error:  # it has ended, as Ray will tell
                return psutil.STATUS_DEAD
        return status

    def ask_for_stack(self) -> str:
        return self._look.stack if time.monotonic() - self._seen < _FRESH_S else ""

    def silent_s(self) -> float:
        """For how long a question has been left unanswered."""
        return time.monotonic() - self._asked if self._is_asked else 0.0

    def _ask(self) -> None:
        if self._is_asked:
            return
        self._is_asked, self._asked = True, time.monotonic()
        answer: Future[Any] = self._actor.handle.look.options(concurrency_group=CONTROL).remote().future()
        answer.add_done_callback(self._take)

    def _take(self, answer: Future[Any]) -> None:
        """On Ray's thread."""
        if answer.exception() is None:  # else it has ended, as Ray tells elsewhere
            self._look, self._seen = answer.result(), time.monotonic()
        self._is_asked = False


def _process_of(actor: RayActor) -> psutil.Process | None:
    """None if this process cannot see it, as from another container, where its number may be another's."""
    with contextlib.suppress(psutil.Error, IndexError):
        process = psutil.Process(actor.pid)
        if process.cmdline()[0].startswith("ray::"):
            return process
    return None
