"""RemoteExecutor: workers that run on their own, the calls that they have been given, and what becomes of those.

Calls are numbered and go to all workers at once; each runs them in turn. How calls and replies travel is for the
executors in multiproc.py and ray.py. Whoever waits for a result looks after the workers meanwhile, and whoever waits
for something else polls `descriptors`. A worker that ends is the engine's end, and the error says which, how, and where
it was. A step that raises on every rank fails, and the engine goes on; if it raises on some, the others wait for them,
or know what they do not, and that is the engine's end, too.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from fathom.dist.place import Place
from fathom.errors import EngineDeadError, EngineStartError, FathomError, ServerError
from fathom.executor.base import Executor, Reply
from fathom.executor.messages import EVERYBODY, Failed, StartWorker, WorkerCall, WorkerReply, as_call, result_of
from fathom.kv_cache_spec import LayerKVSpec
from fathom.wire.codec import Encoder, Frame
from fathom.wire.messages import EngineSetup
from fathom.wire.remote_errors import from_remote_error

_SPINS = 20
SLEEP_S = 0.1
_STEP_METHODS = ("execute_model", "sample_tokens")


class RemoteWorker(Protocol):
    """A worker as the executor knows it."""

    @property
    def place(self) -> Place: ...

    @property
    def name(self) -> str:
        """For messages: its rank, and where it runs."""


class RemoteFuture(Future[list[Any]]):
    """A call under way. Waiting for it is what moves it on, so it is for the thread that has submitted it."""

    def __init__(self, executor: RemoteExecutor, number: int, method: str, reply_from: int) -> None:
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


class RemoteExecutor(Executor):
    """What executors of workers elsewhere have in common.

    Args:
        workers: by rank.
        end_workers: ends all of them; called once or more often.
        others_s: how long the other ranks have to come to the end of a call that one has failed.
    """

    def __init__(self, workers: Sequence[RemoteWorker], end_workers: Callable[[], object], others_s: float) -> None:
        first = workers[0].place
        self._remote = workers
        self._num_workers = first.num_workers
        self._tensor_size = first.tensor_parallel_size
        self._sampler = first.sampler
        self._end_workers = end_workers
        self._others_s = others_s
        self._encoder = Encoder()
        self._num_calls = 0
        self._unfinished: deque[RemoteFuture] = deque()
        self._death: EngineDeadError | None = None

    # ---------------------------------------------------------------- how calls and replies travel

    @abstractmethod
    def _post(self, frames: list[Frame]) -> None:
        """Give every worker a call; waits while there is no room for it."""

    @abstractmethod
    def _look_after_workers(self, sleep_s: float) -> None:
        """Take in every reply that is there; if there is none, sleep until something happens, or for so long."""

    @abstractmethod
    def _let_go_on(self, number: int) -> None:
        """Tell every worker that a call which it has failed is settled, so that it takes the next one."""

    @abstractmethod
    def _kill_workers(self) -> None:
        """End them at once, however they are: what hangs does not end when it is told to."""

    # ---------------------------------------------------------------- the executor's interface

    def submit(self, method: str, args: list[Any] | None = None, at_once: bool = False) -> Reply:
        reply_from = self._sampler if method in _STEP_METHODS else EVERYBODY
        return self._send(method, as_call(method, args or []), reply_from)

    def shutdown(self) -> None:
        if self._death is None:
            with contextlib.suppress(FathomError):  # whatever it is, it is the end
                self.collective_rpc("shutdown")
        self._death = self._death or EngineDeadError("the engine was shut down")
        self._end_workers()

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

    def wait_for(self, future: RemoteFuture) -> None:
        """Look after the workers until the call is done."""
        for _ in range(_SPINS):
            self._look_after_workers(0.0)
            if future.done():
                return
            os.sched_yield()
        while not future.done():
            self._look_after_workers(SLEEP_S)

    def _load_model(self, setup: EngineSetup) -> None:
        """The first call.

        Raises:
            EngineStartError, or what a worker has raised.
        """
        try:
            self._send("start", StartWorker(setup), EVERYBODY).result()
        except EngineDeadError as error:
            raise EngineStartError(str(error)) from error
        except BaseException:
            self._end_workers()
            raise

    def _send(self, method: str, call: Any, reply_from: int) -> RemoteFuture:
        if self._death is not None:
            raise self._death
        frames = self._encoder.encode(WorkerCall(self._num_calls + 1, reply_from, call))
        self._num_calls += 1
        future = RemoteFuture(self, self._num_calls, method, reply_from)
        self._unfinished.append(future)
        self._post(frames)
        return future

    def _method_of(self, number: int) -> str:
        """What a call that is not finished calls."""
        return self._unfinished[number - self._unfinished[0].number].method

    def _take_reply(self, worker: RemoteWorker, reply: WorkerReply) -> None:
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

    def _settle_failed(self, future: RemoteFuture, everybody_finished: bool) -> None:
        rank, error = min(future.failures.items())
        if future.method == "start":  # nothing goes on from here
            future.set_exception(error)
            self._end_with("the engine did not start")
        elif everybody_finished and (len(future.failures) == self._num_workers or future.reply_from == EVERYBODY):
            if not future.done():
                future.set_exception(error)
            self._let_go_on(future.number)
        elif everybody_finished or time.monotonic() - future.failed_at > self._others_s:
            why = "the others have not" if everybody_finished else "the others wait for it"
            notes = "\n".join(getattr(error, "__notes__", ()))
            self._end_with(f"{self._remote[rank].name} has failed in {future.method}, and {why}: {error}\n{notes}")

    def _end_with(self, problem: str) -> None:
        """The engine's end: every call raises it, those under way and all later ones."""
        self._death = EngineDeadError(problem)
        for future in self._unfinished:
            if not future.done():
                future.set_exception(self._death)
        self._kill_workers()
