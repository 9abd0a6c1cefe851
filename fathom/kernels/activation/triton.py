"""Gated activations for GPUs, in Triton: both halves are read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 1024


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See the package's docstring for shapes."""
    return _launch(gate_up, gelu=False)


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See the package's docstring for shapes."""
    return _launch(gate_up, gelu=True)


def _launch(gate_up: torch.Tensor, gelu: bool) -> torch.Tensor:
    num_tokens, size = len(gate_up), gate_up.shape[1] // 2
    output = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    _gated[(num_tokens, triton.cdiv(size, TILE))](gate_up, gate_up.stride(0), output, size, TILE=TILE, GELU=gelu)
    return output


@triton.jit
def _gated(gate_up, stride, output, size, TILE: tl.constexpr, GELU: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < size
    dtype: tl.constexpr = gate_up.dtype.element_ty
    x = tl.load(gate_up + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + size + columns, mask=inside, other=0.0).to(tl.float32)
    # x * sigmoid(z); gelu's 0.5 * (1 + tanh(z / 2)) is sigmoid(z)
    z = x
    if GELU:
        z = 1.5957691216057308 * (x + 0.044715 * x * x * x)  # 2 * sqrt(2 / pi)
    acted = (x / (1.0 + tl.exp(-z))).to(dtype).to(tl.float32)
    tl.store(output + row * size + columns, (acted * up).to(dtype), mask=inside)
