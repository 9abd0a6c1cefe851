"""Rotary embedding by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import cpu


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    num_tokens, num_heads, head_dim = x.shape
    if x.stride()[1:] != (head_dim, 1):
        x = x.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    output = x.new_empty(num_tokens, num_heads, head_dim)
    cpu.apply_rotary(
        output.data_ptr(),
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        num_tokens,
        num_heads,
        head_dim,
        x.stride(0),
    )
    return output
