"""SharedSums: adding up small tensors of processes on one machine, through memory that all of them have mapped.

A decode step adds up a few kilobytes twice in every layer. Through sockets that takes longer than the products between
two sums; here a rank writes its numbers, says so, waits until all have, and adds them up for itself:

    [ counters: sums that rank 0, 1, ... has taken part in | rank 0: slot 0, slot 1 | rank 1: slot 0, slot 1 | ... ]

The n-th sum uses slot n mod 2. A rank that writes to a slot again has seen everybody's counter pass the sum in between,
and a rank counts that one only when it is done reading the one before.

Stores must become visible in the order in which they are made, which x86 promises and Python cannot ask for, so it is for
x86 only (`is_possible`).
"""

from __future__ import annotations

import os
import platform
import time

import torch

SLOT_BYTES = 1 << 20
_LINE = 8  # counters of 8 bytes in a cache line
_SPINS = 2000
_SLEEP_S = 50e-6


def is_possible() -> bool:
    """Whether this machine shows stores to other processors in their order."""
    return platform.machine().lower() in ("x86_64", "amd64")


def shared_sums_bytes(num_ranks: int) -> int:
    """Shared memory that a group takes; zeros before anybody uses it."""
    return num_ranks * (_LINE * 8 + 2 * SLOT_BYTES)


class SharedSums:
    """One rank's view of the memory [shared_sums_bytes(size)]."""

    def __init__(self, memory: memoryview, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size
        self._counters = memory[: size * _LINE * 8].cast("Q")
        self._slots = torch.frombuffer(memory[size * _LINE * 8 :], dtype=torch.uint8).view(size, 2, SLOT_BYTES)
        self._count = 0

    def has_room_for(self, tensor: torch.Tensor) -> bool:
        """The same on every rank, since their tensors have one shape."""
        return tensor.nbytes <= SLOT_BYTES and tensor.is_contiguous()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum in order of the ranks, in place of a tensor that there is room for."""
        self._count += 1
        slots = [
            self._slots[rank, self._count % 2, : tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            for rank in range(self._size)
        ]
        slots[self._rank].copy_(tensor)
        self._counters[self._rank * _LINE] = self._count
        self._wait_for_all()
        torch.add(slots[0], slots[1], out=tensor)
        for slot in slots[2:]:
            tensor.add_(slot)
        return tensor

    def _wait_for_all(self) -> None:
        looks = 0
        while min(self._counters[:: _LINE]) < self._count:
            looks += 1
            if looks < _SPINS:
                os.sched_yield()
            else:
                time.sleep(_SLEEP_S)
