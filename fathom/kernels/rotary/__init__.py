"""Rotate queries or keys by their position (rotary embedding, halves layout).

    apply_rotary(
        x         [num_tokens, num_heads, head_dim]
        cos, sin  [num_tokens, head_dim / 2] float32, of each token's position
    ) -> [num_tokens, num_heads, head_dim], in x's dtype

Dimension i is paired with i + head_dim / 2, as in Hugging Face checkpoints.
"""

from __future__ import annotations

import torch

from fathom.kernels.native import serves
from fathom.kernels.rotary import cpu, ref


def apply_rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x turned by its tokens' angles."""
    return (cpu if serves(x) else ref).apply_rotary(x, cos, sin)
