"""Actors on another machine, which can be asked and not be looked at; what they answer comes in any order.

Ray and the other machine are stand-ins: an actor answers what it is asked when a test says so.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (pip install 'fathom-llm[ray]')")

import ray.util

from fathom.config import EngineConfig
from fathom.dist.place import Place
from fathom.errors import EngineDeadError
from fathom.executor import ray_hangs
from fathom.executor.messages import Result, WorkerCall, WorkerReply
from fathom.executor.ray import RayExecutor
from fathom.executor.ray_cluster import RayActor, RayCluster
from fathom.executor.ray_worker import LATER, Look
from fathom.model_config import load_model_config
from fathom.step import SchedulerOutput
from fathom.weights.resolve import ResolvedModel
from fathom.wire.codec import Decoder, Encoder
from fathom.wire.messages import EngineSetup
from tests.client.processes import comes_true

FAR = "203.0.113.7"  # an address that no machine has
NO_PID = 2**22 + 1  # more than Linux gives out
STEP = SchedulerOutput({"a": 1}, 1, [], {}, [], 0, 0)
HANGING = (
    'File "/fathom/models/decoder.py", line 1, in forward\nFile "/fathom/executor/ray_worker.py", line 1, in call\n'
)


class Method:
    """A method of an actor's handle. asked: what it has been called with, and the answer that is awaited."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[Any, ...], Future[Any]]] = []

    def options(self, **options: Any) -> Method:
        return self

    def remote(self, *args: Any) -> Method:
        self.asked.append((args, Future()))
        return self

    def future(self) -> Future[Any]:
        return self.asked[-1][1]


class Handle:
    """What Ray gives for an actor."""

    def __init__(self) -> None:
        self.call, self.answer, self.look, self.go_on = Method(), Method(), Method(), Method()
        self.call.remote = self._take_call  # type: ignore[method-assign]

    def _take_call(self, frames: list[bytes]) -> Method:
        """Loading succeeds at once."""
        call: WorkerCall = Decoder[WorkerCall](WorkerCall).decode(frames)
        self.call.asked.append(((call.number,), Future()))
        if call.number == 1:
            self.finish(1)
        return self.call

    def finish(self, number: int, value: Any = None) -> None:
        """Answer a call."""
        self.call.asked[number - 1][1].set_result(reply(number, value))


def reply(number: int, value: Any) -> list[bytes]:
    return [bytes(frame) for frame in Encoder().encode(WorkerReply(number, Result(value)))]


class Cluster(RayCluster):
    """Has an actor at each of these addresses and process ids."""

    def __init__(self, actors: list[tuple[str, int]]) -> None:
        super().__init__(None)
        self.actors = [
            RayActor(Place(rank, len(actors)), Handle(), pid, address, Future())
            for rank, (address, pid) in enumerate(actors)
        ]
        self.is_killed = False

    def start_actors(self, parallel: Any, device: str) -> list[RayActor]:
        return self.actors

    def kill_actors(self) -> None:
        self.is_killed = True


class Engine:
    """An executor with such actors, and the time as it sees it."""

    def __init__(self, model: Path, actors: list[tuple[str, int]], patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr(ray_hangs.time, "monotonic", lambda: self.now)
        resolved = ResolvedModel(model, "safetensors", "tiny")
        config = EngineConfig.from_options(device="cpu", tensor_parallel_size=len(actors))
        self.cluster = Cluster(actors)
        self.handles: list[Handle] = [actor.handle for actor in self.cluster.actors]
        self.executor = RayExecutor(
            EngineSetup(config, load_model_config(resolved), str(model), "safetensors"), self.cluster
        )

    def wait(self, seconds: float) -> None:
        """Let time go by; the engine looks at its workers at the end of it."""
        self.now += seconds
        self.executor.check()

    def wait_and_look(self, times: int, look: Look) -> None:
        """Let time go by in which the first rank answers again and again."""
        for _ in range(times):
            self.wait(0.3)
            self.look(0, look)

    def look(self, rank: int, look: Look) -> None:
        """Answer what the engine has asked the rank last."""
        self.handles[rank].look.asked[-1][1].set_result(look)


@pytest.fixture
def start(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    def start_engine(*actors: tuple[str, int]) -> Engine:
        return Engine(tiny("llama-gqa"), list(actors or [(FAR, NO_PID)]), monkeypatch)

    return start_engine


def test_one_that_owes_a_step_is_out_of_reach_after_10_s_of_silence(start: Callable[..., Engine]) -> None:
    engine = start((FAR, NO_PID), (FAR, NO_PID))
    engine.executor.execute_model(STEP)
    engine.wait(1.0)
    engine.look(0, Look(0.0, "S", ""))  # the first one answers once more
    engine.wait(10.0)
    assert not engine.cluster.is_killed
    with pytest.raises(EngineDeadError, match=rf"worker rank 1 \(pid {NO_PID} on {FAR}\) has not answered for 10 s"):
        engine.wait(0.5)
    assert engine.cluster.is_killed


def test_one_that_answers_may_take_as_long_as_it_likes(start: Callable[..., Engine]) -> None:
    engine = start()
    pending = engine.executor.execute_model(STEP)
    for second in range(60):
        engine.wait(1.0)
        engine.look(0, Look(float(second), "R", HANGING))
    engine.handles[0].finish(2, "done")
    assert pending.result() == ["done"]
    engine.wait(60.0)  # nothing is owed any more
    engine.wait(60.0)


def test_silence_outside_of_steps_is_no_sign(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.executor.submit("warm_up")
    for _ in range(3):
        engine.wait(600.0)
    assert not engine.cluster.is_killed


def test_one_that_answers_and_does_nothing_hangs(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.executor.execute_model(STEP)
    with pytest.raises(EngineDeadError, match=r"(?s)hangs: it has done nothing for 1 s .*decoder\.py"):
        engine.wait_and_look(9, Look(5.0, "S", HANGING))


def test_an_old_answer_does_not_say_where_it_is_now(start: Callable[..., Engine]) -> None:
    engine = start()
    engine.executor.execute_model(STEP)
    engine.wait(0.3)
    engine.look(0, Look(5.0, "S", HANGING))
    for _ in range(33):
        engine.wait(0.3)  # in which it may go on, and its answer be on its way
    with pytest.raises(EngineDeadError, match="has not answered for 10 s"):
        engine.wait(0.6)


@pytest.fixture
def stopped() -> Iterator[int]:
    """The number of a process here that looks like an actor and is stopped."""
    process = subprocess.Popen(["ray::RayWorker", "100000"], executable="/bin/sleep")
    process.send_signal(signal.SIGSTOP)
    assert comes_true(lambda: os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)[0] == process.pid)
    yield process.pid
    process.kill()
    process.wait()


def test_one_on_this_machine_that_is_stopped_is_found_at_once(start: Callable[..., Engine], stopped: int) -> None:
    engine = start((ray.util.get_node_ip_address(), stopped))
    engine.executor.execute_model(STEP)
    engine.wait(1.0)
    with pytest.raises(EngineDeadError, match=rf"\(pid {stopped} on .*\) is stopped"):
        engine.wait(1.0)


def test_a_process_here_of_the_same_number_says_nothing_about_one_elsewhere(
    start: Callable[..., Engine], stopped: int
) -> None:
    engine = start((FAR, stopped))
    engine.executor.execute_model(STEP)
    for second in range(5):
        engine.wait(1.0)
        engine.look(0, Look(float(second), "R", HANGING))


def test_a_process_here_that_is_no_actor_is_not_looked_at(start: Callable[..., Engine]) -> None:
    """As from within a container, whose numbers are others."""
    process = subprocess.Popen(["sleep", "100000"])
    try:
        process.send_signal(signal.SIGSTOP)
        engine = start((ray.util.get_node_ip_address(), process.pid))
        engine.executor.execute_model(STEP)
        for second in range(5):
            engine.wait(1.0)
            engine.look(0, Look(float(second), "R", HANGING))
    finally:
        process.kill()
        process.wait()


def test_answers_come_in_any_order_and_are_each_for_its_call(start: Callable[..., Engine]) -> None:
    engine = start((FAR, NO_PID), (FAR, NO_PID))
    calls = [engine.executor.submit("method", [number]) for number in range(3)]
    for rank, numbers in enumerate([(4, 2, 3), (3, 4, 2)]):
        for number in numbers:
            engine.handles[rank].finish(number, f"{number} of {rank}")
    assert [call.result() for call in calls] == [[f"{number} of 0", f"{number} of 1"] for number in (2, 3, 4)]


def test_what_is_put_off_is_fetched_by_its_number(start: Callable[..., Engine]) -> None:
    engine = start()
    first, second = (engine.executor.submit("method", [number]) for number in range(2))
    for number in (2, 3):
        engine.handles[0].call.asked[number - 1][1].set_result(LATER)
    engine.executor.check()
    assert [args for args, _ in engine.handles[0].answer.asked] == [(2,), (3,)]
    for number in (3, 2):
        engine.handles[0].answer.asked[number - 2][1].set_result(reply(number, number))
    assert (first.result(), second.result()) == ([2], [3])
