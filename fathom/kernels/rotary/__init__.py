"""Rotate queries or keys by their position (rotary embedding, halves layout).

    apply_rotary(
        x         [num_tokens, num_heads, head_dim]
        cos, sin  [num_tokens, head_dim / 2] float32, of each token's position
    ) -> [num_tokens, num_heads, head_dim], in x's dtype

Dimension i is paired with i + head_dim / 2, as in Hugging Face checkpoints.
"""

from fathom.kernels.rotary.ref import apply_rotary

__all__ = ["apply_rotary"]
