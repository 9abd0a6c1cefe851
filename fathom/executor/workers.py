"""Starting all workers of an engine, and ending them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from fathom.dist.place import Place
from fathom.errors import ConfigError
from fathom.executor.ring import Ring
from fathom.executor.worker_process import WorkerProcess, rings_bytes, shared_rings

if TYPE_CHECKING:
    from fathom.config import ParallelOptions


class Workers(NamedTuple):
    """The running workers, by rank, and the ring on which they are called."""

    calls: Ring
    processes: list[WorkerProcess]


def start_workers(parallel: ParallelOptions) -> Workers:
    """Start a process for each worker; they import torch until they are told what to load.

    Raises:
        ConfigError: the system has no memory without a name that processes could share.
    """
    sizes = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
    num_workers = sizes[0] * sizes[1]
    if not hasattr(os, "memfd_create"):
        raise ConfigError(
            f"{num_workers} workers share memory in a way that {sys.platform} does not have; it takes Linux.",
            parameter="tensor_parallel_size",
            value=sizes[0],
            hint="Use 1.",
        )
    memory, meeting, sums = (os.memfd_create(f"fathom-{name}") for name in ("rings", "meeting", "sums"))
    processes: list[WorkerProcess] = []
    try:
        os.ftruncate(memory, rings_bytes(num_workers))
        calls, replies = shared_rings(memory, num_workers)
        for rank, own_replies in enumerate(replies):
            processes += [WorkerProcess(Place(rank, *sizes), memory, meeting, sums, own_replies)]
        return Workers(calls, processes)
    except BaseException:
        end_workers(os.getpid(), processes)
        raise
    finally:
        for descriptor in (memory, meeting, sums):
            os.close(descriptor)


def end_workers(owner: int, processes: list[WorkerProcess]) -> None:
    """End them; not in a process that the owner forked, whose workers they are not."""
    if os.getpid() != owner:
        return
    for worker in processes:
        worker.let_go()
    for worker in processes:
        worker.wait_for_end()
