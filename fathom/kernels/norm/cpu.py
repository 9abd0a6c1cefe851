"""RMS norm by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import cpu


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    x = x.contiguous()
    output = torch.empty_like(x)
    size = x.shape[-1]
    cpu.rms_norm(output.data_ptr(), x.data_ptr(), weight.data_ptr(), x.numel() // size, size, eps)
    return output


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package's docstring for shapes and rules."""
    x, residual = x.contiguous(), residual.contiguous()
    output, total = torch.empty_like(x), torch.empty_like(x)
    size = x.shape[-1]
    cpu.add_rms_norm(
        output.data_ptr(),
        total.data_ptr(),
        x.data_ptr(),
        residual.data_ptr(),
        weight.data_ptr(),
        x.numel() // size,
        size,
        eps,
    )
    return output, total
