"""Products with weights in 8-bit floats in plain torch."""

from __future__ import annotations

import torch


def fp8_matmul(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    total = x.float() @ weight.float().T * scales
    if bias is not None:
        total += bias
    return total.to(x.dtype)
