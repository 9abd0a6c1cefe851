"""RayCluster: the connection to Ray, and the actors that it runs for an engine, each with a CPU or a GPU of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fathom import __version__
from fathom.dist.place import Place
from fathom.errors import ConfigError, EngineStartError
from fathom.executor.ray_head import RayHead
from fathom.executor.ray_worker import CONTROL, GROUPS, Arrival, RayWorker

if TYPE_CHECKING:
    from fathom.config import ParallelOptions

_PLACEMENT_S = 30.0
"""How long to wait for CPUs or GPUs that the cluster has and that are in use."""
_END_S = 2.0
"""How long actors have to end."""


@dataclass(frozen=True)
class RayActor:
    """A worker's actor. end: fails when it has ended."""

    place: Place
    handle: Any
    pid: int
    address: str
    end: Future[Any]

    @property
    def name(self) -> str:
        return f"worker rank {self.place.rank} (pid {self.pid} on {self.address})"


class RayCluster:
    """The connection.

    Args:
        address: of Ray; None if this process is connected already, which it then stays.
        head: what runs Ray if it was started for this engine.
    """

    def __init__(self, address: str | None, head: RayHead | None = None) -> None:
        self._is_own = address is not None
        self._head = head
        if address is not None:
            _connect(address)
        self._group: Any = None
        self._handles: list[Any] = []
        self._ends: list[Future[Any]] = []

    def start_actors(self, parallel: ParallelOptions, device: str) -> list[RayActor]:
        """An actor for each worker, by rank; ranks beside each other are on one machine as far as can be.

        Raises:
            ConfigError: the cluster has not as many CPUs or GPUs, or another Fathom.
            EngineStartError: an actor did not start.
        """
        sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        num_workers = sizes[0] * sizes[1]
        resource = "GPU" if device == "cuda" else "CPU"
        self._group = _reserve(num_workers, resource)
        kind = ray.remote(concurrency_groups=GROUPS)(RayWorker)
        for index in range(num_workers):
            there = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            options = {"num_cpus": int(resource == "CPU"), "num_gpus": int(resource == "GPU")}
            self._handles.append(kind.options(**options, max_restarts=0, scheduling_strategy=there).remote())
        try:
            arrivals: list[Arrival] = ray.get([handle.arrive.remote() for handle in self._handles])
            _check_versions(arrivals)
            order = sorted(range(num_workers), key=lambda index: arrivals[index].address)
            host = self._handles[order[0]]
            port = ray.get(host.host_meeting.remote(num_workers))
        except RayError as error:
            raise EngineStartError(f"a worker did not start in Ray: {reason_of(error)}") from error
        workers_at = Counter(arrival.address for arrival in arrivals)
        actors = []
        for rank, index in enumerate(order):
            handle, arrival = self._handles[index], arrivals[index]
            place = Place(rank, *sizes, workers_at[arrival.address], device_index=0)
            handle.take_place.remote(place, arrivals[order[0]].address, port)
            end = handle.wait_for_end.options(concurrency_group=CONTROL).remote().future()
            self._ends.append(end)
            actors.append(RayActor(place, handle, arrival.pid, arrival.address, end))
        return actors

    def kill_actors(self) -> None:
        """End them, without waiting for it."""
        for handle in self._handles:
            ray.kill(handle)

    def leave(self, owner: int) -> None:
        """End the actors and give back what they had; and Ray, if it was started for it. Not in a fork of the owner."""
        if os.getpid() != owner or not ray.is_initialized():
            return
        self.kill_actors()
        wait(self._ends, _END_S)
        if self._group is not None:
            remove_placement_group(self._group)
        if self._is_own:
            ray.shutdown()
        if self._head is not None:
            self._head.shutdown()


def reason_of(error: BaseException) -> str:
    """Why an actor has ended, in a line of what Ray says about it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = next((line for line in lines if line.startswith("The actor is dead because ")), lines[-1])
    return told.partition(" Some common causes ")[0].removeprefix("The actor is dead because ")


def _connect(address: str) -> None:
    with _signals_kept():
        try:
            ray.init(address, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ConfigError(
                f"distributed_executor_backend=ray, but Ray at {address} does not let us in: {error}.",
                parameter="distributed_executor_backend",
                value="ray",
            ) from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray has a program end on SIGTERM, which is for our caller to decide."""
    if threading.current_thread() is not threading.main_thread():
        yield  # then Ray leaves signals alone
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)


def _reserve(num_workers: int, resource: str) -> Any:
    there = ray.cluster_resources().get(resource, 0)
    if there < num_workers:
        raise _too_few(num_workers, resource, f"it has {there:g}", f"Use at most {there:g} workers, or add machines.")
    group = placement_group([{resource: 1}] * num_workers, strategy="PACK")
    if not group.wait(_PLACEMENT_S):
        free = ray.available_resources().get(resource, 0)
        remove_placement_group(group)
        raise _too_few(
            num_workers,
            resource,
            f"of its {there:g} no more than {free:g} are free, after {_PLACEMENT_S:g} s",
            "`ray status` says what they are used for.",
        )
    return group


def _too_few(num_workers: int, resource: str, problem: str, hint: str) -> ConfigError:
    return ConfigError(
        f"{num_workers} workers in Ray take {num_workers} {resource}s of the cluster: {problem}.",
        parameter="tensor_parallel_size",
        value=num_workers,
        hint=hint,
    )


def _check_versions(arrivals: list[Arrival]) -> None:
    for arrival in arrivals:
        if arrival.version != __version__:
            raise ConfigError(
                f"Fathom is {__version__} here and {arrival.version} on {arrival.address}, where Ray runs a worker.",
                parameter="distributed_executor_backend",
                value="ray",
                hint="Install the same one on every machine of the cluster.",
            )
