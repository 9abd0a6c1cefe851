"""Root-mean-square normalisation over the last dimension, alone or after adding a residual.

    rms_norm(x, weight, eps) -> x / sqrt(mean(x^2) + eps) * weight
    add_rms_norm(x, residual, weight, eps) -> (rms_norm(x + residual), x + residual)

        x, residual  [..., size]
        weight       [size] float32

Arithmetic is in float32, results are in x's dtype. The two are one step because the sum is in registers when
the norm needs it; the sum is the residual stream that the next addition starts from.
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return implementation(__name__, x).rms_norm(x, weight, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual)."""
    return implementation(__name__, x).add_rms_norm(x, residual, weight, eps)
