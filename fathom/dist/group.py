"""Group: ranks that compute one thing together, and what they can say to each other.

`Alone` is the group of a single rank: nothing is sent, nothing is imported, and what would come back is what was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Group(Protocol):
    """Every rank of a group makes the same calls in the same order, with tensors of the same shape and dtype."""

    rank: int
    size: int

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' tensors, in place of this rank's; the same bits on every rank."""

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """All ranks' tensors, in order of the ranks."""

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """What rank `source` has given, in place of this rank's tensor."""

    def send(self, tensor: torch.Tensor, target: int) -> None:
        """Give a tensor, which must not change any more, to another rank; returns before it is read, but for a backlog."""

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        """Wait for what another rank sends, and write it to the tensor."""


class Alone:
    """A group of one."""

    rank = 0
    size = 1

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor]

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        return tensor

    def send(self, tensor: torch.Tensor, target: int) -> None:
        raise ValueError(f"a group of one has no rank {target} to send to")

    def receive(self, tensor: torch.Tensor, source: int) -> torch.Tensor:
        raise ValueError(f"a group of one has no rank {source} to receive from")


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups that a worker belongs to. tensor: the ranks of its stage. pipeline: its counterparts in all stages."""

    tensor: Group
    pipeline: Group


ALONE = Groups(Alone(), Alone())
