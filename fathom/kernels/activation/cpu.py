"""Gated activations by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.native import cpu


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See the package's docstring for shapes."""
    gate_up, output = gate_up.contiguous(), _half_as_wide(gate_up)
    cpu.silu_and_mul(output.data_ptr(), gate_up.data_ptr(), *output.shape)
    return output


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See the package's docstring for shapes."""
    gate_up, output = gate_up.contiguous(), _half_as_wide(gate_up)
    cpu.gelu_tanh_and_mul(output.data_ptr(), gate_up.data_ptr(), *output.shape)
    return output


def _half_as_wide(gate_up: torch.Tensor) -> torch.Tensor:
    num_tokens, width = gate_up.shape
    return gate_up.new_empty(num_tokens, width // 2)
