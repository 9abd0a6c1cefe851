"""A worker's process: takes the executor's calls from the shared ring, one after another, and answers.

A call that raises is reported, and the worker waits for a word of the executor's before it takes the next: the other
ranks may be in the middle of the same call, and what they send each other must not meet with what belongs to another.

A step that has only been launched on a device is answered by a thread that waits for it, while this one launches the
next. From the first such step on all answers go through that thread, so that they stay in order.
"""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from setproctitle import setproctitle

from fathom.config import EngineConfig
from fathom.dist.place import Place
from fathom.dist.shares import even_cut
from fathom.executor.base import public_method
from fathom.executor.bell import Bell, PeerGoneError
from fathom.executor.messages import (
    EVERYBODY,
    CallMethod,
    ExecuteModel,
    Failed,
    InitializeFromConfig,
    StartWorker,
    WorkerCall,
    WorkerReply,
    as_outcome,
)
from fathom.executor.ring import MessageReader, chunks
from fathom.executor.worker_process import Inherited, shared_rings
from fathom.hardware import limit_openmp_spinning, parse_cores
from fathom.log import setup_logging
from fathom.plugins import load_general_plugins
from fathom.step import PendingOutput
from fathom.wire.codec import Decoder, Encoder, Frame
from fathom.wire.messages import EngineSetup
from fathom.wire.remote_errors import to_remote_error

logger = logging.getLogger(__name__)

_SPINS = 50
"""Looks at the ring before a worker sleeps: some tens of microseconds, about what it takes to be woken up."""
_SLEEP_S = 0.5
"""A bound on a sleep through which the bell was not heard."""
_PARENT_CHECK_S = 0.5
_ROOM_CHECK_S = 0.001
"""Between the answering thread's looks for room in the ring: it must not hear the bell in the other one's place."""


class WorkerLoop:
    """Reads calls, runs them, replies."""

    def __init__(self, inherited: Inherited, bell: Bell) -> None:
        self._place = inherited.place
        self._meeting_fds = inherited.meeting, inherited.sums
        self._bell = bell
        self._calls, replies = shared_rings(inherited.memory, inherited.place.num_workers)
        self._replies = replies[inherited.place.rank]
        self._reader = MessageReader(self._calls, inherited.place.rank)
        self._encoder = Encoder()
        self._decoder: Decoder[WorkerCall] = Decoder(WorkerCall)
        self._worker: Any = None
        self._answers: queue.SimpleQueue[tuple[WorkerCall, Any]] | None = None

    def run(self) -> None:
        """Until the executor lets go, which raises PeerGoneError."""
        while True:
            call = self._next_call()
            result: Any
            try:
                result = self._run(call.call)
            except Exception as error:
                result = error
            if isinstance(result, PendingOutput) and self._answers is None:
                self._answers = queue.SimpleQueue()
                threading.Thread(target=self._answer_later, args=(self._answers,), name="answers", daemon=True).start()
            if self._answers is not None:
                self._answers.put((call, result))
            else:
                self._answer(call, result, partial(self._wait_until, self._replies.has_room))
            if isinstance(result, Exception):
                self._wait_until(partial(self._may_go_on_after, call.number))

    def _answer_later(self, answers: queue.SimpleQueue[tuple[WorkerCall, Any]]) -> None:
        """The answering thread's life."""
        while True:
            self._answer(*answers.get(), self._look_for_room)

    def _look_for_room(self) -> None:
        while not self._replies.has_room():
            time.sleep(_ROOM_CHECK_S)

    def _answer(self, call: WorkerCall, result: Any, wait_for_room: Callable[[], None]) -> None:
        """Tell what a call has returned or raised, when that is known, if it is to be told."""
        try:
            if isinstance(result, PendingOutput):
                result = result.result()
            if isinstance(result, Exception):
                raise result
            frames = self._encoder.encode(WorkerReply(call.number, as_outcome(result)))
        except Exception as error:
            frames = self._encoder.encode(WorkerReply(call.number, Failed(to_remote_error(error))))
            self._reply(frames, call.number, wait_for_room)
            return
        if call.reply_from in (EVERYBODY, self._place.rank):
            self._reply(frames, call.number, wait_for_room)
        else:
            self._replies.progress = call.number

    def _run(self, call: StartWorker | InitializeFromConfig | ExecuteModel | CallMethod) -> Any:
        if isinstance(call, StartWorker):
            self._worker = self._start(call.setup)
            return None
        if isinstance(call, ExecuteModel):
            return self._worker.execute_model(call.step)
        if isinstance(call, InitializeFromConfig):
            return self._worker.initialize_from_config(call.kv_cache, call.max_model_len)
        return public_method(self._worker, call.method)(*call.args)

    def _may_go_on_after(self, failed_call: int) -> bool:
        return self._calls.progress >= failed_call

    def _start(self, setup: EngineSetup) -> Any:
        from fathom.worker.worker import start_worker

        load_general_plugins()
        own = msgspec.structs.replace(setup, config=own_config(setup.config, self._place))
        worker = start_worker(own, self._place, *self._meeting_fds)
        gc.freeze()  # what the start has made stays, and needs no looking through
        return worker

    def _next_call(self) -> WorkerCall:
        frames: list[Frame] | None = None

        def has_come() -> bool:
            nonlocal frames
            frames = self._reader.read()
            if self._calls.writer_asleep:  # there is room again
                self._bell.ring()
            return frames is not None

        self._wait_until(has_come)
        assert frames is not None
        return self._decoder.decode(frames)

    def _reply(self, frames: list[Frame], number: int, wait_for_room: Callable[[], None]) -> None:
        for chunk, more in chunks(frames):
            wait_for_room()
            self._replies.put(chunk, more)
            if not more:
                self._replies.progress = number
            if self._replies.sleepers():
                self._bell.ring()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Look a few times, then sleep until the executor rings; look again, and so on."""
        for _ in range(_SPINS):
            if condition():
                return
            os.sched_yield()
        try:
            while True:
                self._calls.set_asleep(self._place.rank, True)
                self._replies.set_writer_asleep(True)
                if condition():
                    return
                self._bell.wait(_SLEEP_S)
        finally:
            self._calls.set_asleep(self._place.rank, False)
            self._replies.set_writer_asleep(False)


def own_config(config: EngineConfig, place: Place) -> EngineConfig:
    """The config of one worker: its share of the threads and cores, and progress bars on the first rank alone."""
    changes: dict[str, Any] = {"show_progress": config.runtime.show_progress and place.rank == 0}
    if config.runtime.num_threads is not None:
        share = even_cut(config.runtime.num_threads, place.rank, place.num_workers)
        changes["num_threads"] = share.size
        if config.runtime.cpu_cores is not None:
            cores = parse_cores(config.runtime.cpu_cores)[share.slice]
            changes["cpu_cores"] = ",".join(map(str, cores))
    return config.replace(**changes)


def main(arguments: list[str]) -> None:
    """The process's entry point: an `Inherited`, encoded."""
    inherited = Inherited.decode(arguments[0])
    setproctitle(f"fathom::{inherited.place.name}")
    faulthandler.enable(inherited.stack)
    faulthandler.register(signal.SIGUSR1, inherited.stack, all_threads=False)
    setup_logging()
    if inherited.place.rank > 0:  # the first rank speaks for all, but for warnings
        logging.getLogger("fathom").setLevel(max(logging.WARNING, logging.getLogger("fathom").level))
    limit_openmp_spinning()
    bell = Bell.inherited(inherited.bell)
    threading.Thread(target=_exit_with_executor, args=(bell,), name="executor-watch", daemon=True).start()
    try:
        import fathom.worker.worker  # noqa: F401 - seconds of imports, before the setup comes

        WorkerLoop(inherited, bell).run()
    except PeerGoneError:
        os._exit(0)
    except Exception:
        logger.exception("worker rank %d ends on an error", inherited.place.rank)
        sys.exit(1)


def _exit_with_executor(bell: Bell) -> None:
    """End this process, in the middle of a step if need be, when the executor closes the bell or is gone.

    The parent's id is watched too, since a process that it forked may keep the bell open.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        if bell.wait_for_end(_PARENT_CHECK_S):
            break
    os._exit(0)
