"""Products with matrices of floats by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import TYPE_NUMBERS, cpu
from fathom.quant.float_weight import FloatWeight


def float_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    x = x.contiguous()
    if out is None:
        out = x.new_empty(*x.shape[:-1], weight.rows)
    cpu.float_matmul(
        out.data_ptr(),
        out.stride(-2) if out.dim() > 1 else weight.rows,
        x.data_ptr(),
        weight.values.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        x.numel() // weight.columns,
        weight.rows,
        weight.columns,
        TYPE_NUMBERS[weight.values.dtype],
    )
    return out
