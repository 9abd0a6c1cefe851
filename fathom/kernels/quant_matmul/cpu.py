"""Products with packed weights by the native kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fathom.kernels.native import cpu, packed_arguments
from fathom.quant.packed import PackedWeight


def quant_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    return _call(cpu.quant_matmul, x, weight, bias, out)


def decoded_matmul(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    return _call(cpu.decoded_matmul, x, weight, bias, out)


def _call(
    kernel: Callable[..., None],
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    out: torch.Tensor | None,
) -> torch.Tensor:
    x = x.contiguous()
    if out is None:
        out = x.new_empty(*x.shape[:-1], weight.rows)
    kernel(
        out.data_ptr(),
        out.stride(-2) if out.dim() > 1 else weight.rows,
        x.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        x.numel() // weight.columns,
        *packed_arguments(weight),
    )
    return out
