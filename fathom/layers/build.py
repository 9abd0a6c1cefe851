"""BuildContext: what every layer needs to know while it is being built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fathom.dist.group import ALONE, Group

if TYPE_CHECKING:
    from fathom.layers.linear import LinearMethod


@dataclass(frozen=True)
class BuildContext:
    """Passed down through the constructors of a model and its layers; nothing of it is kept afterwards.

    dtype, device: of the weights, which are allocated there and left uninitialised for the loader to fill.
    max_model_len: positions that tables such as the rotary one must cover.
    linear_method: how matrices are stored and multiplied. vocab_method: those of embedding and head, if otherwise.
    tensor: the ranks among which each layer is cut. pipeline: those among which the layers are divided.
    """

    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    linear_method: LinearMethod
    tensor: Group = ALONE.tensor
    pipeline: Group = ALONE.pipeline
    vocab_method: LinearMethod | None = None

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> torch.nn.Parameter:
        """An uninitialised weight of the given shape."""
        tensor = torch.empty(*shape, dtype=dtype or self.dtype, device=self.device)
        return torch.nn.Parameter(tensor, requires_grad=False)

    def declare(self, *shape: int) -> torch.nn.Parameter:
        """A weight of which there are only name, shape and dtype; a LinearMethod keeps its content elsewhere."""
        return torch.nn.Parameter(torch.empty(*shape, dtype=self.dtype, device="meta"), requires_grad=False)
