"""MultiprocExecutor: a process for each worker; calls go to all of them at once through shared memory.

    engine     submit 1, submit 2 ...  ->  [ ring of calls ]  ->  every worker takes each call in turn
    worker 0   runs 1, 2 ...           ->  [ its ring ]       ->  results
    worker 1   runs 1, 2 ...           ->  [ its ring ]       ->  failures, and results if all are wanted

There is no thread on the engine's side: whoever waits for a result looks after the workers meanwhile, and whoever
waits for something else polls `descriptors`. A worker that ends, or hangs, is the engine's end, and the error says
which, how, and where it was. A step that raises on every rank fails, and the engine goes on; if it raises on some, the
others wait for them, or know what they do not, and that is the engine's end, too.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import Any

from fathom.errors import EngineDeadError, EngineStartError, FathomError, ServerError
from fathom.executor.base import Executor, Reply
from fathom.executor.bell import PeerGoneError, wait_for_any
from fathom.executor.hangs import HangWatch
from fathom.executor.messages import EVERYBODY, Failed, StartWorker, WorkerCall, WorkerReply, as_call, result_of
from fathom.executor.ring import chunks
from fathom.executor.worker_process import WorkerProcess
from fathom.executor.workers import Workers, end_workers
from fathom.kv_cache_spec import LayerKVSpec
from fathom.wire.codec import Encoder
from fathom.wire.messages import EngineSetup
from fathom.wire.remote_errors import from_remote_error

_SPINS = 20
_SLEEP_S = 0.1
_OTHERS_S = 1.0
"""How long the other ranks have to come to the end of a call that one has failed."""
_STEP_METHODS = ("execute_model", "sample_tokens")


class WorkerFuture(Future[list[Any]]):
    """A call under way. Waiting for it is what moves it on, so it is for the thread that has submitted it."""

    def __init__(self, executor: MultiprocExecutor, number: int, method: str, reply_from: int) -> None:
        super().__init__()
        self.number = number
        self.method = method
        self.reply_from = reply_from
        self.results: dict[int, Any] = {}
        self.failures: dict[int, Exception] = {}
        self.failed_at = 0.0
        self._executor = executor

    def result(self, timeout: float | None = None) -> list[Any]:
        if not self.done():
            self._executor.wait_for(self)
        return super().result(timeout)


class MultiprocExecutor(Executor):
    """Has the workers load their shares of the model on construction; owns them from then on."""

    def __init__(self, setup: EngineSetup, workers: Workers) -> None:
        self._calls, self._workers = workers.calls, workers.processes
        self._num_workers = len(workers.processes)
        self._tensor_size = workers.processes[0].place.tensor_parallel_size
        self._sampler = workers.processes[0].place.sampler
        self._finalizer = weakref.finalize(self, end_workers, os.getpid(), workers.processes)
        self._hangs = HangWatch(self._workers, judges_idleness=setup.config.runtime.device == "cpu")
        self._encoder = Encoder()
        self._num_calls = 0
        self._unfinished: deque[WorkerFuture] = deque()
        self._death: EngineDeadError | None = None
        try:
            self._send("start", StartWorker(setup), EVERYBODY).result()
        except EngineDeadError as error:
            raise EngineStartError(str(error)) from error
        except BaseException:
            self._finalizer()
            raise

    # ---------------------------------------------------------------- the executor's interface

    def submit(self, method: str, args: list[Any] | None = None) -> Reply:
        reply_from = self._sampler if method in _STEP_METHODS else EVERYBODY
        return self._send(method, as_call(method, args or []), reply_from)

    def shutdown(self) -> None:
        if self._death is None:
            with contextlib.suppress(FathomError):  # whatever it is, it is the end
                self.collective_rpc("shutdown")
        self._death = self._death or EngineDeadError("the engine was shut down")
        self._finalizer()

    def descriptors(self) -> list[int]:
        return [worker.bell.fileno() for worker in self._workers]

    def check(self) -> None:
        self._look_after_workers(0.0)
        if self._death is not None:
            raise self._death

    def get_kv_cache_specs(self) -> list[LayerKVSpec]:
        """Of each stage those of the rank that stores the most, since all ranks have equally many blocks."""
        specs: list[list[LayerKVSpec]] = self.collective_rpc("get_kv_cache_specs")
        stages = zip(*[iter(specs)] * self._tensor_size, strict=True)
        largest = [max(stage, key=lambda layers: layers[0].bytes_per_token) for stage in stages]
        return [layer for stage in largest for layer in stage]

    # ---------------------------------------------------------------- calls and replies

    def wait_for(self, future: WorkerFuture) -> None:
        """Look after the workers until the call is done."""
        for _ in range(_SPINS):
            self._look_after_workers(0.0)
            if future.done():
                return
            os.sched_yield()
        while not future.done():
            self._look_after_workers(_SLEEP_S)

    def _send(self, method: str, call: Any, reply_from: int) -> WorkerFuture:
        if self._death is not None:
            raise self._death
        frames = self._encoder.encode(WorkerCall(self._num_calls + 1, reply_from, call))
        self._num_calls += 1
        future = WorkerFuture(self, self._num_calls, method, reply_from)
        self._unfinished.append(future)
        for chunk, more in chunks(frames):
            while not self._calls.has_room():
                self._look_after_workers(_SLEEP_S)
                if self._death is not None:
                    raise self._death
            self._calls.put(chunk, more)
            for rank in self._calls.sleepers():
                self._workers[rank].bell.ring()
        return future

    def _look_after_workers(self, sleep_s: float) -> None:
        """Take in every reply that is there; if there is none, sleep until something happens, or for so long."""
        if self._take_replies() or self._death is not None:
            return
        if sleep_s:
            self._sleep(sleep_s)
        hanging = self._hangs.find(self._num_calls, self._method_of)
        if hanging is not None and self._death is None:
            worker, problem = hanging
            self._end_with(f"{worker.name} {problem}")

    def _method_of(self, number: int) -> str:
        """What a call that is not finished calls."""
        return self._unfinished[number - self._unfinished[0].number].method

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

    def _take_reply(self, worker: WorkerProcess, reply: WorkerReply) -> None:
        future = self._unfinished[reply.number - self._unfinished[0].number]
        if isinstance(reply.outcome, Failed):
            unknown = EngineStartError if future.method == "start" else ServerError
            error = from_remote_error(reply.outcome.error, worker.name, unknown=unknown)
            future.failures[worker.place.rank] = error
            future.failed_at = future.failed_at or time.monotonic()
            return
        future.results[worker.place.rank] = result_of(reply.outcome)
        if future.done() or future.failures:
            return
        if future.reply_from != EVERYBODY:
            future.set_result([future.results[future.reply_from]])
        elif len(future.results) == self._num_workers:
            future.set_result([future.results[rank] for rank in range(self._num_workers)])

    # ---------------------------------------------------------------- failures

    def _settle(self, finished: list[int]) -> None:
        """Decide what becomes of calls that failed on some rank, and forget those that every worker has finished.

        Args:
            finished: of each worker, the number of the last call that it is known to have reported on.
        """
        while self._unfinished and self._death is None:
            future = self._unfinished[0]
            everybody_finished = min(finished) >= future.number
            if future.failures:
                self._settle_failed(future, everybody_finished)
            if not (everybody_finished and future.done()):
                return
            self._unfinished.popleft()

    def _settle_failed(self, future: WorkerFuture, everybody_finished: bool) -> None:
        rank, error = min(future.failures.items())
        worker = self._workers[rank]
        if future.method == "start":  # nothing goes on from here
            future.set_exception(error)
            self._end_with("the engine did not start")
        elif everybody_finished and (len(future.failures) == self._num_workers or future.reply_from == EVERYBODY):
            if not future.done():
                future.set_exception(error)
            self._calls.progress = future.number  # they may go on
            for other in self._workers:
                other.bell.ring()
        elif everybody_finished or time.monotonic() - future.failed_at > _OTHERS_S:
            why = "the others have not" if everybody_finished else "the others wait for it"
            notes = "\n".join(getattr(error, "__notes__", ()))
            self._end_with(f"{worker.name} has failed in {future.method}, and {why}: {error}\n{notes}")

    def _end_with(self, problem: str) -> None:
        """The engine's end: every call raises it, those under way and all later ones."""
        self._death = EngineDeadError(problem)
        for future in self._unfinished:
            if not future.done():
                future.set_exception(self._death)
        for worker in self._workers:
            worker.process.kill()  # what hangs does not end when it is told to
        self._finalizer()


def _how_they_ended(workers: list[WorkerProcess]) -> str:
    words = []
    for worker in workers:
        stack = worker.last_stack()
        words.append(f"{worker.name} {worker.exit_words()}" + (f"\n{stack}" if stack else ""))
    return "; ".join(words)
