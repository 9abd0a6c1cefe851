"""RayWorker: a worker in a Ray actor's process, on whichever machine Ray has put it.

Calls come one after another on the actor's own thread. What the executor has to say meanwhile comes on another, in the
concurrency group CONTROL: that a failed call is settled, and a question that is answered by the process's end only.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
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
from fathom.wire.codec import Decoder
from fathom.wire.messages import EngineSetup

if TYPE_CHECKING:
    from fathom.dist.meeting import Meeting

CONTROL = "control"


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

    def call(self, frames: list[bytes]) -> list[bytes] | None:
        """Run a WorkerCall, to its end on the device too; the frames of the WorkerReply, if it is wanted."""
        self._may_go_on.wait()
        call = self._decoder.decode(frames)
        answer = self._worker.answer(call, self._worker.run(call.call))
        if answer.has_failed:
            self._may_go_on.clear()
        return [bytes(frame) for frame in answer.frames] if answer.is_wanted else None

    def go_on(self) -> None:
        """Take the next call after one that has failed; in CONTROL."""
        self._may_go_on.set()

    def wait_for_end(self) -> None:
        """Never returns: Ray answers in this process's place when it has ended; in CONTROL."""
        threading.Event().wait()

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
