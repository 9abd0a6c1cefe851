"""Products with matrices of floats in plain torch: the matrix is widened for the product, not kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from fathom.quant.float_weight import FloatWeight


def float_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    product = F.linear(x, weight.dense(), bias)
    return product if out is None else out.copy_(product)


def bfloat16_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    return float_matmul(x.bfloat16().float(), weight, bias, out)
