"""RayWorker: a worker in a Ray actor's process, on whichever machine Ray has put it.

Calls come one after another on the actor's own thread. What the executor has to say meanwhile comes on others, in the
concurrency group CONTROL: that a failed call is settled, how the worker is, and a question that is answered by the
process's end only.

A step that has only been launched on a device is answered by a call of its own, in the group ANSWERS, which waits for
it while the next one is launched. From the first such step on all answers are fetched so.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ray.util

from fathom import __version__
from fathom.dist.place import Place
from fathom.errors import ModelNotFoundError
from fathom.executor.called_worker import CalledWorker
from fathom.executor.messages import WorkerCall
from fathom.hardware import limit_openmp_spinning
from fathom.log import setup_logging
from fathom.step import PendingOutput
from fathom.wire.codec import Decoder
from fathom.wire.messages import EngineSetup

if TYPE_CHECKING:
    from fathom.dist.meeting import Meeting

CONTROL, ANSWERS = "control", "answers"
GROUPS = {CONTROL: 3, ANSWERS: 1}
"""Concurrency groups, and the threads of each: in CONTROL one waits for the end."""
LATER = "later"
"""In place of a call's answer: it is to be fetched with `answer`."""


class Look(NamedTuple):
    """How a worker is.

    cpu_seconds: of the thread that runs calls. state: the system's letter for what this thread does. stack: its Python
    calls, innermost first; empty between calls of the executor's.
    """

    cpu_seconds: float
    state: str
    stack: str


class Arrival(NamedTuple):
    """What an actor says of itself when it is there."""

    version: str
    pid: int
    address: str


class RayWorker:
    """The actor's class; its methods are called in the order in which they stand here."""

    def __init__(self) -> None:
        setup_logging()
        limit_openmp_spinning()
        self._decoder: Decoder[WorkerCall] = Decoder(WorkerCall)
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._launched: dict[int, tuple[WorkerCall, Any]] = {}
        self._runs_behind = False
        self._thread: threading.Thread | None = None  # that runs calls
        self._is_called = False

    def arrive(self) -> Arrival:
        """Get ready to be told what to load."""
        import fathom.worker.worker  # noqa: F401 - seconds of imports

        return Arrival(__version__, os.getpid(), ray.util.get_node_ip_address())

    def host_meeting(self, num_workers: int) -> int:
        """Have the ranks meet here, at the port that is returned."""
        from fathom.dist.meeting import host_meeting

        self._meeting, port = host_meeting(ray.util.get_node_ip_address(), num_workers)
        return port

    def take_place(self, place: Place, host: str, port: int) -> None:
        """Learn which worker this is, and where the ranks meet."""
        self._place = place
        self._host = host, port
        self._worker = CalledWorker(place, self._start)
        if place.rank > 0:  # the first rank speaks for all, but for warnings
            logging.getLogger("fathom").setLevel(max(logging.WARNING, logging.getLogger("fathom").level))

    def call(self, frames: list[bytes]) -> list[bytes] | str | None:
        """Run a WorkerCall; the frames of the WorkerReply, if it is wanted, or LATER."""
        self._may_go_on.wait()
        call = self._decoder.decode(frames)
        self._thread, self._is_called = threading.current_thread(), True
        result = self._worker.run(call.call)
        self._is_called = False
        self._runs_behind = self._runs_behind or isinstance(result, PendingOutput)
        if isinstance(result, Exception):
            self._may_go_on.clear()
        if not self._runs_behind:
            return self._answer(call, result)
        self._launched[call.number] = call, result
        return LATER

    def answer(self, number: int) -> list[bytes] | None:
        """What `call` has put off, when it is known; in ANSWERS."""
        return self._answer(*self._launched.pop(number))

    def look(self) -> Look:
        """How the worker is now; in CONTROL."""
        thread = self._thread
        if thread is None or thread.ident is None:
            return Look(0.0, "", "")
        frame = sys._current_frames().get(thread.ident) if self._is_called else None
        stack = traceback.format_list(traceback.extract_stack(frame)[::-1]) if frame is not None else []
        status = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
        seconds = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        return Look(seconds, status.rpartition(") ")[2][:1], "".join(stack))

    def go_on(self) -> None:
        """Take the next call after one that has failed; in CONTROL."""
        self._may_go_on.set()

    def wait_for_end(self) -> None:
        """Never returns: Ray answers in this process's place when it has ended; in CONTROL."""
        threading.Event().wait()

    def _answer(self, call: WorkerCall, result: Any) -> list[bytes] | None:
        answer = self._worker.answer(call, result)
        return [bytes(frame) for frame in answer.frames] if answer.is_wanted else None

    def _start(self, setup: EngineSetup) -> Any:
        from fathom.worker.worker import start_worker

        if not Path(setup.model_path).exists():
            raise ModelNotFoundError(
                f"{setup.model_path} is not on {socket.gethostname()}, where Ray runs worker rank {self._place.rank}.",
                parameter="model",
                value=setup.model_path,
                hint="Every machine of the cluster needs the model at the same path.",
            )
        return start_worker(setup, self._place, self._join())

    def _join(self) -> Meeting:
        from fathom.dist.meeting import join_meeting

        if self._place.rank == 0:
            return self._meeting
        return join_meeting(*self._host, self._place.num_workers, ray.util.get_node_ip_address())
