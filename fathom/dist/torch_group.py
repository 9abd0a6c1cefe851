"""TorchGroup: a Group on torch.distributed: gloo between processes on CPUs, NCCL between GPUs.

Small sums on a CPU, of ranks that share memory, do not go through gloo but through there (dist/shared_sums.py), with
the same bits.
"""

from __future__ import annotations

import mmap
import os
from collections import deque

import torch
import torch.distributed as dist

from fathom.dist.group import Alone, Group, Groups
from fathom.dist.meeting import LOOPBACK, Meeting
from fathom.dist.place import Place
from fathom.dist.shared_sums import SharedSums, is_possible, shared_sums_bytes

_MAX_SENT = 2
"""Tensors that may wait to be read by other ranks; whoever sends more waits."""


class TorchGroup:
    """Some ranks of the process's world, by their world ranks.

    Args:
        sums: of these ranks, if they share memory.
    """

    def __init__(self, ranks: list[int], group: dist.ProcessGroup, sums: SharedSums | None = None) -> None:
        self._sums = sums
        self._ranks = ranks
        self._group = group
        self.rank = dist.get_rank(group)
        self.size = len(ranks)
        # Who adds up to what first depends, in gloo's ring, on where in the tensor a number lies; with two it cannot.
        self._sums_in_order = self.size > 2 and dist.get_backend(group) == "gloo"
        self._sent: deque[tuple[dist.Work, torch.Tensor]] = deque()  # and perhaps not read yet

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._sums is not None and self._sums.has_room_for(tensor):
            return self._sums.all_reduce(tensor)
        if not self._sums_in_order:
            dist.all_reduce(tensor, group=self._group)
            return tensor
        first, *others = self.all_gather(tensor)
        tensor.copy_(first)
        for other in others:
            tensor.add_(other)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(gathered, tensor.contiguous(), group=self._group)
        return gathered

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        dist.broadcast(tensor, self._ranks[source], group=self._group)
        return tensor

    def send(self, tensor: torch.Tensor, target: int) -> None:
        while len(self._sent) >= _MAX_SENT:
            self._sent.popleft()[0].wait()
        work = dist.isend(tensor, self._ranks[target], group=self._group)
        assert work is not None
        self._sent.append((work, tensor))

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        dist.recv(tensor, self._ranks[source], group=self._group)
        return tensor


def connect(place: Place, meeting: Meeting, device: torch.device) -> Groups:
    """Meet the other ranks; returns when all are there.

    Args:
        device: where this rank's tensors lie.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", meeting.interface)
    if meeting.interface != LOOPBACK:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", meeting.interface)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=meeting.store, rank=place.rank, world_size=place.num_workers)
    tensor_size, stages = place.tensor_parallel_size, place.pipeline_parallel_size
    of_stage = [[stage * tensor_size + rank for rank in range(tensor_size)] for stage in range(stages)]
    across = [[stage * tensor_size + rank for stage in range(stages)] for rank in range(tensor_size)]
    sums = None
    if meeting.sums_fd is not None and device.type == "cpu" and tensor_size > 1 and is_possible():
        sums = _shared_sums(place, meeting.sums_fd)
    return Groups(_own_group(of_stage, place.rank, sums), _own_group(across, place.rank))


def _shared_sums(place: Place, sums_fd: int) -> SharedSums:
    """Those of the rank's stage, each of which has its part of the file."""
    size = shared_sums_bytes(place.tensor_parallel_size)
    os.ftruncate(sums_fd, size * place.pipeline_parallel_size)  # whoever does it first; it changes nothing again
    memory = memoryview(mmap.mmap(sums_fd, size * place.pipeline_parallel_size))
    own = memory[place.stage * size : (place.stage + 1) * size]
    return SharedSums(own, place.tensor_rank, place.tensor_parallel_size)


def _own_group(rank_lists: list[list[int]], rank: int, sums: SharedSums | None = None) -> Group:
    """The group of the list that holds `rank`; every rank makes all of them, as torch asks."""
    own: Group = Alone()
    for ranks in rank_lists:
        if len(ranks) > 1:
            group = dist.new_group(ranks)
            if rank in ranks:
                own = TorchGroup(ranks, group, sums)
    return own
