"""A worker's process: takes the executor's calls from the shared ring, one after another, and answers.

A call that raises is reported, and the worker waits for a word of the executor's before it takes the next: the other
ranks may be in the middle of the same call, and what they send each other must not meet with what belongs to another.

A step that has only been launched on a device is answered by a thread that waits for it, while this one launches the
next. From the first such step on all answers go through that thread, so that they stay in order.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from setproctitle import setproctitle

from fathom.executor.bell import Bell, PeerGoneError, wait_for_parent_s_end
from fathom.executor.called_worker import CalledWorker
from fathom.executor.messages import WorkerCall
from fathom.executor.ring import MessageReader, chunks
from fathom.executor.worker_process import Inherited, shared_rings
from fathom.hardware import limit_openmp_spinning
from fathom.log import setup_logging
from fathom.step import PendingOutput
from fathom.wire.codec import Decoder, Frame
from fathom.wire.messages import EngineSetup

logger = logging.getLogger(__name__)

_SPINS = 50
"""Looks at the ring before a worker sleeps: some tens of microseconds, about what it takes to be woken up."""
_SLEEP_S = 0.5
"""A bound on a sleep through which the bell was not heard."""
_ROOM_CHECK_S = 0.001
"""Between the answering thread's looks for room in the ring: it must not hear the bell in the other one's place."""


class WorkerLoop:
    """Reads calls, runs them, replies."""

    def __init__(self, inherited: Inherited, bell: Bell) -> None:
        self._inherited = inherited
        self._place = inherited.place
        self._meeting_fds = inherited.meeting, inherited.sums
        self._bell = bell
        self._calls, replies = shared_rings(inherited.memory, inherited.place.num_workers)
        self._replies = replies[inherited.place.rank]
        self._reader = MessageReader(self._calls, inherited.place.rank)
        self._decoder: Decoder[WorkerCall] = Decoder(WorkerCall)
        self._worker = CalledWorker(inherited.place, self._start)
        self._answers: queue.SimpleQueue[tuple[WorkerCall, Any]] | None = None

    def run(self) -> None:
        """Until the executor lets go, which raises PeerGoneError."""
        while True:
            call = self._next_call()
            result = self._worker.run(call.call)
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
        """The answering thread's life. An error of it is the worker's end: nothing more would ever be answered."""
        try:
            while True:
                self._answer(*answers.get(), self._look_for_room)
        except BaseException:
            _end_on_error(self._inherited)

    def _look_for_room(self) -> None:
        while not self._replies.has_room():
            time.sleep(_ROOM_CHECK_S)

    def _answer(self, call: WorkerCall, result: Any, wait_for_room: Callable[[], None]) -> None:
        """Tell what a call has returned or raised, when that is known, if it is to be told."""
        answer = self._worker.answer(call, result)
        if answer.is_wanted:
            self._reply(answer.frames, call.number, wait_for_room)
        else:
            self._replies.progress = call.number

    def _may_go_on_after(self, failed_call: int) -> bool:
        return self._calls.progress >= failed_call

    def _start(self, setup: EngineSetup) -> Any:
        from fathom.dist.meeting import meet_in_files
        from fathom.worker.worker import start_worker

        return start_worker(setup, self._place, meet_in_files(*self._meeting_fds, self._place.num_workers))

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
        _end_on_error(inherited)


def _end_on_error(inherited: Inherited) -> NoReturn:
    """End this process on the error that is being handled: it is logged, and left where the executor finds it."""
    logger.exception("worker rank %d ends on an error", inherited.place.rank)
    os.truncate(inherited.stack, 0)
    os.write(inherited.stack, traceback.format_exc().encode(errors="backslashreplace"))
    os._exit(1)


def _exit_with_executor(bell: Bell) -> None:
    """End this process, in the middle of a step if need be, when the executor closes the bell or is gone."""
    wait_for_parent_s_end(bell)
    os._exit(0)
