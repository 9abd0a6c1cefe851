"""Stages: which layers of a model a rank has, and how hidden states get from one stage to the next.

    stage 0   embedding, layers 0 .. 11    -- [num_tokens, hidden_size] -->    stage 1   layers 12 .. 23, norm, head

What travels is the residual stream with the last block's output added to it. What a stage does not have is in its
place as an `Elsewhere`, so that layers keep their numbers and weights their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fathom.dist.shares import Cut, even_cut

if TYPE_CHECKING:
    from fathom.dist.group import Group


class Elsewhere(nn.Module):
    """A part of the model that another stage has."""


def layers_of_stage(num_layers: int, pipeline: Group) -> Cut:
    """Which layers this rank's stage has."""
    return even_cut(num_layers, pipeline.rank, pipeline.size)


class Stage:
    """Where this rank stands among the stages.

    Args:
        hidden_size, dtype, device: of the hidden states.
    """

    def __init__(self, pipeline: Group, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._pipeline = pipeline
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self.is_first = pipeline.rank == 0
        self.is_last = pipeline.rank == pipeline.size - 1

    def empty(self, num_tokens: int) -> torch.Tensor:
        """Room for [num_tokens, hidden_size]."""
        return torch.empty(num_tokens, self._hidden_size, dtype=self._dtype, device=self._device)

    def receive(self, num_tokens: int) -> torch.Tensor:
        """[num_tokens, hidden_size] of the stage before."""
        return self._pipeline.receive(self.empty(num_tokens), self._pipeline.rank - 1)

    def send(self, hidden: torch.Tensor) -> None:
        """Give [num_tokens, hidden_size], which must not change any more, to the stage behind; without waiting."""
        self._pipeline.send(hidden, self._pipeline.rank + 1)
