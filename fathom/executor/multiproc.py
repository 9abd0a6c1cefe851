"""MultiprocExecutor: a process for each worker; calls go to all of them at once through shared memory.

    engine     submit 1, submit 2 ...  ->  [ ring of calls ]  ->  every worker takes each call in turn
    worker 0   runs 1, 2 ...           ->  [ its ring ]       ->  results
    worker 1   runs 1, 2 ...           ->  [ its ring ]       ->  failures, and results if all are wanted

There is no thread on the engine's side. Beside what remote.py says of all executors of its kind, a worker that hangs is
the engine's end here.
"""

from __future__ import annotations

import os
import weakref

from fathom.executor.bell import PeerGoneError, wait_for_any
from fathom.executor.hangs import HangWatch
from fathom.executor.remote import SLEEP_S, RemoteExecutor
from fathom.executor.ring import chunks
from fathom.executor.worker_process import WorkerProcess
from fathom.executor.workers import Workers, end_workers
from fathom.wire.codec import Frame
from fathom.wire.messages import EngineSetup

_OTHERS_S = 1.0
"""How long the other ranks have to come to the end of a call that one has failed."""


class MultiprocExecutor(RemoteExecutor):
    """Has the workers load their shares of the model on construction; owns them from then on."""

    def __init__(self, setup: EngineSetup, workers: Workers) -> None:
        super().__init__(
            workers.processes, weakref.finalize(self, end_workers, os.getpid(), workers.processes), _OTHERS_S
        )
        self._calls, self._workers = workers.calls, workers.processes
        self._hangs = HangWatch(self._workers, judges_idleness=setup.config.runtime.device == "cpu")
        self._load_model(setup)

    def descriptors(self) -> list[int]:
        return [worker.bell.fileno() for worker in self._workers]

    def _post(self, frames: list[Frame]) -> None:
        for chunk, more in chunks(frames):
            while not self._calls.has_room():
                self._look_after_workers(SLEEP_S)
                if self._death is not None:
                    raise self._death
            self._calls.put(chunk, more)
            for rank in self._calls.sleepers():
                self._workers[rank].bell.ring()

    def _look_after_workers(self, sleep_s: float) -> None:
        if self._take_replies() or self._death is not None:
            return
        if sleep_s:
            self._sleep(sleep_s)
        hanging = self._hangs.find(self._num_calls, self._method_of)
        if hanging is not None and self._death is None:
            worker, problem = hanging
            self._end_with(f"{worker.name} {problem}")

    def _sleep(self, sleep_s: float) -> None:
        rings = [worker.replies for worker in self._workers]
        try:
            for ring in rings:
                ring.set_asleep(0, True)
            self._calls.set_writer_asleep(True)
            if not self._take_replies():
                wait_for_any([worker.bell for worker in self._workers], sleep_s)
        finally:
            for ring in rings:
                ring.set_asleep(0, False)
            self._calls.set_writer_asleep(False)

    def _take_replies(self) -> bool:
        """Whether there were any."""
        # Before the replies: what a worker had finished by now it has reported by now.
        finished = [worker.num_finished_calls for worker in self._workers]
        found = False
        gone = []
        for worker in self._workers:
            try:
                worker.bell.drain()
            except PeerGoneError:
                gone.append(worker)
            while (frames := worker.reader.read()) is not None:
                found = True
                self._take_reply(worker, worker.decoder.decode(frames))
            if worker.replies.writer_asleep:
                worker.bell.ring()
        if gone and self._death is None:
            self._end_with(_how_they_ended(gone))
        self._settle(finished)
        return found

    def _let_go_on(self, number: int) -> None:
        self._calls.progress = number
        for worker in self._workers:
            worker.bell.ring()

    def _kill_workers(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        self._end_workers()


def _how_they_ended(workers: list[WorkerProcess]) -> str:
    words = []
    for worker in workers:
        stack = worker.last_stack()
        words.append(f"{worker.name} {worker.exit_words()}" + (f"\n{stack}" if stack else ""))
    return "; ".join(words)
