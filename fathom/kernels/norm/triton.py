"""RMS norms for GPUs, in Triton: a program for each row, which it reads once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fathom.kernels.gpu import power_of_two


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    rows = x.reshape(-1, x.shape[-1])
    normed = torch.empty(rows.shape, dtype=x.dtype, device=x.device)
    _rms_norm[(len(rows),)](
        rows,
        rows.stride(0),
        rows,
        0,
        weight,
        eps,
        normed,
        normed,
        rows.shape[1],
        ADDS=False,
        **_width(rows),
    )
    return normed.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the package's docstring for shapes and rules."""
    rows, added = x.reshape(-1, x.shape[-1]), residual.reshape(-1, x.shape[-1])
    normed, total = (torch.empty(rows.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    _rms_norm[(len(rows),)](
        rows,
        rows.stride(0),
        added,
        added.stride(0),
        weight,
        eps,
        normed,
        total,
        rows.shape[1],
        ADDS=True,
        **_width(rows),
    )
    return normed.view(x.shape), total.view(x.shape)


def _width(rows: torch.Tensor) -> dict[str, int]:
    """The tile that holds a row, and so many warps that it fits their registers."""
    size = power_of_two(rows.shape[1])
    return {"SIZE": size, "num_warps": 4 if size <= 4096 else 8}


@triton.jit
def _rms_norm(
    x, x_stride, residual, residual_stride, weight, eps, normed, total, size, SIZE: tl.constexpr, ADDS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, SIZE)
    inside = columns < size
    wide = tl.load(x + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    dtype: tl.constexpr = x.dtype.element_ty
    if ADDS:
        wide += tl.load(residual + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = wide.to(dtype)
        tl.store(total + row * size + columns, rounded, mask=inside)
        wide = rounded.to(tl.float32)
    mean_square = tl.sum(wide * wide, 0) / size
    scaled = wide / tl.sqrt(mean_square + eps) * tl.load(weight + columns, mask=inside, other=0.0)
    tl.store(normed + row * size + columns, scaled.to(dtype), mask=inside)
