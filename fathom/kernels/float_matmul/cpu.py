"""Products with matrices of floats by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import TYPE_NUMBERS, cpu
from fathom.quant.float_weight import FloatWeight


def float_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    x, out = x.contiguous(), _output(x, weight, out)
    cpu.float_matmul(*_arguments(x, weight, bias, out), TYPE_NUMBERS[weight.values.dtype])
    return out


def bfloat16_matmul(
    x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    x, out = x.contiguous(), _output(x, weight, out)
    cpu.bfloat16_matmul(*_arguments(x, weight, bias, out))
    return out


def _output(x: torch.Tensor, weight: FloatWeight, out: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.rows) if out is None else out


def _arguments(x: torch.Tensor, weight: FloatWeight, bias: torch.Tensor | None, out: torch.Tensor) -> tuple[int, ...]:
    return (
        out.data_ptr(),
        out.stride(-2) if out.dim() > 1 else weight.rows,
        x.data_ptr(),
        weight.values.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        x.numel() // weight.columns,
        weight.rows,
        weight.columns,
    )
