"""Activations of gated feed-forward layers: act(gate) * up, from the two halves of one tensor.

silu_and_mul(gate_up), gelu_tanh_and_mul(gate_up)
    gate_up  [num_tokens, 2 * size], the gate first
    ->       [num_tokens, size]
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    return implementation(__name__, gate_up).silu_and_mul(gate_up)


def gelu_tanh_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up, by the tanh approximation that Gemma is trained with."""
    return implementation(__name__, gate_up).gelu_tanh_and_mul(gate_up)
