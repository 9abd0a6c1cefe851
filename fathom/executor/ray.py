"""RayExecutor: the workers are Ray actors, on this machine or others; calls go to all of them as messages through Ray.

    engine     call 1, call 2 ...  ->  each actor's queue  ->  its worker runs each call in turn
               inbox               <-  replies, and the news that an actor has ended

Replies arrive on a thread of Ray's, which puts them into the inbox; everything else happens when the engine looks.
"""

from __future__ import annotations

import os
import socket
import weakref
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import msgspec
import ray.util

from fathom.executor.bell import Bell
from fathom.executor.hangs import HangWatch
from fathom.executor.messages import WorkerReply
from fathom.executor.ray_cluster import RayActor, RayCluster, reason_of
from fathom.executor.ray_hangs import SILENT_S, WatchedActor
from fathom.executor.ray_worker import ANSWERS, CONTROL, LATER
from fathom.executor.remote import RemoteExecutor
from fathom.wire.codec import Decoder, Frame
from fathom.wire.messages import EngineSetup

_OTHERS_S = 10.0
"""How long the other ranks have to come to the end of a call that one has failed. It may have failed since another has
ended, which Ray learns at once of a process and later of a machine."""


class _Arrived(NamedTuple):
    """Something that a worker has answered, or Ray in its place: a call's number, or 0 for the end of the worker."""

    rank: int
    number: int
    answer: Future[Any]


class _Inbox:
    """What has arrived from the workers and is still to be looked at; put in by Ray's thread, taken by the engine's."""

    def __init__(self) -> None:
        self._arrived: SimpleQueue[_Arrived] = SimpleQueue()
        here, there = socket.socketpair()
        self.bell = Bell(here)
        """Rung when a worker has ended, which may be while the engine waits for something else."""
        self._end_bell = Bell(there)

    def expect(self, rank: int, number: int, answer: Future[Any]) -> None:
        answer.add_done_callback(partial(self._put, rank, number))

    def take(self, timeout_s: float) -> _Arrived | None:
        """The next one; None if there is none after so long."""
        try:
            return self._arrived.get(timeout_s > 0, timeout_s or None)
        except Empty:
            return None

    def _put(self, rank: int, number: int, answer: Future[Any]) -> None:
        self._arrived.put(_Arrived(rank, number, answer))
        if not number:
            self._end_bell.ring()


class RayExecutor(RemoteExecutor):
    """Has Ray start the workers on construction, and these load their shares of the model."""

    def __init__(self, setup: EngineSetup, cluster: RayCluster) -> None:
        finalizer = weakref.finalize(self, cluster.leave, os.getpid())
        try:
            self._actors: list[RayActor] = cluster.start_actors(setup.config.parallel, setup.config.runtime.device)
        except BaseException:
            finalizer()
            raise
        super().__init__(self._actors, finalizer, _OTHERS_S)
        self._cluster = cluster
        self._decoder: Decoder[WorkerReply] = Decoder(WorkerReply)
        here = ray.util.get_node_ip_address()
        self._watched = [WatchedActor(actor, here) for actor in self._actors]
        self._hangs = HangWatch(self._watched, judges_idleness=setup.config.runtime.device == "cpu")
        self._inbox = _Inbox()
        for rank, actor in enumerate(self._actors):
            self._inbox.expect(rank, 0, actor.end)
        # A bar that is drawn through Ray's log is a line for each of its states.
        self._load_model(msgspec.structs.replace(setup, config=setup.config.replace(show_progress=False)))

    def descriptors(self) -> list[int]:
        return [self._inbox.bell.fileno()]

    def _post(self, frames: list[Frame]) -> None:
        message = [bytes(frame) for frame in frames]
        for rank, actor in enumerate(self._actors):
            self._inbox.expect(rank, self._num_calls, actor.handle.call.remote(message).future())

    def _look_after_workers(self, sleep_s: float) -> None:
        self._inbox.bell.drain()
        arrived = self._inbox.take(sleep_s)
        while arrived is not None and self._death is None:
            self._take_in(arrived)
            arrived = self._inbox.take(0.0)
        self._settle([actor.num_finished_calls for actor in self._watched])
        if self._death is None:
            self._look_for_hangs()

    def _look_for_hangs(self) -> None:
        hanging = self._hangs.find(self._num_calls, self._method_of)
        if hanging is not None:
            actor, problem = hanging
            self._end_with(f"{actor.name} {problem}")
            return
        for actor in self._watched:
            if actor.silent_s() > SILENT_S and self._is_in_step(actor):
                self._end_with(f"{actor.name} has not answered for {SILENT_S:g} s: it is stopped or out of reach")
                return

    def _is_in_step(self, actor: WatchedActor) -> bool:
        finished = actor.num_finished_calls
        return finished < self._num_calls and self._method_of(finished + 1) in ("execute_model", "sample_tokens")

    def _take_in(self, arrived: _Arrived) -> None:
        actor = self._actors[arrived.rank]
        problem = arrived.answer.exception()
        if problem is not None:
            self._end_with(f"{actor.name} was lost: {reason_of(problem)}")
            return
        frames = arrived.answer.result()
        if frames == LATER:
            later = actor.handle.answer.options(concurrency_group=ANSWERS).remote(arrived.number)
            self._inbox.expect(arrived.rank, arrived.number, later.future())
            return
        watched = self._watched[arrived.rank]
        watched.num_finished_calls = max(watched.num_finished_calls, arrived.number)
        if frames is not None:
            self._take_reply(actor, self._decoder.decode(frames))

    def _let_go_on(self, number: int) -> None:
        for actor in self._actors:
            actor.handle.go_on.options(concurrency_group=CONTROL).remote()

    def _kill_workers(self) -> None:
        self._cluster.kill_actors()
