"""RMSNorm with its weight in float32: the weights are tiny, and Gemma's 1 + w would not survive bfloat16."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from fathom.kernels.norm import add_rms_norm, rms_norm

if TYPE_CHECKING:
    from fathom.layers.build import BuildContext


class RMSNorm(nn.Module):
    """Normalise the last dimension and multiply by the weight [size] (which holds 1 + w for Gemma)."""

    def __init__(self, size: int, eps: float, build: BuildContext):
        super().__init__()
        self.weight = build.empty(size, dtype=torch.float32)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)

    def after_add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of x + residual, x + residual); without a residual, (norm of x, x)."""
        if residual is None:
            return self(x), x
        return add_rms_norm(x, residual, self.weight, self.eps)
