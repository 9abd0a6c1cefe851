"""Activations of gated feed-forward layers: act(gate) * up, from the two halves of one tensor.

silu_and_mul(gate_up), gelu_tanh_and_mul(gate_up)
    gate_up  [num_tokens, 2 * size], the gate first
    ->       [num_tokens, size]
"""

from fathom.kernels.activation.ref import gelu_tanh_and_mul, silu_and_mul

__all__ = ["gelu_tanh_and_mul", "silu_and_mul"]
