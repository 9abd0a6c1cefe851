"""What lies between the query-key-value product and attention, in one call.

    rotate_and_store(
        qkv             [num_tokens, (num_heads + 2 * num_kv_heads) * head_dim], rows [queries | keys | values]
        positions       [num_tokens] int64
        cos, sin        [max_positions, head_dim / 2] float32, the tables of all positions
        slot_mapping    [num_tokens] int64, block * block_size + offset
        cache           the layer's KVCache
        query_norm, key_norm   [head_dim] float32, weights of an RMS norm of each head; None for no norm
        eps             of these norms
    ) -> queries [num_tokens, num_heads, head_dim], in qkv's dtype, for products with keys of this cache

Queries and keys are normalised if the family does, then rotated by their positions: dimension i is paired with
i + head_dim / 2, as in Hugging Face checkpoints. Keys and values go to their slots, rounded to the cache's format
(to the nearest; what is too large for 16 or 8 bits becomes the largest number there is: 448 in fp8_e4m3, 57,344 in
fp8_e5m2). In int8 a token's head has a scale of its own, its largest number / 127.

For an int8 cache queries and keys are multiplied by an orthonormal Hadamard matrix before the keys are rounded, as in
QuaRot (Ashkboos et al. 2024, arXiv 2404.00456). Their products stay the same, and a few large dimensions, which would
leave the others few of the 255 numbers, are spread over all. The matrix mixes dimension i with i + head_dim / 2, and
then, in each half, blocks of the largest power of two that divides head_dim / 2: the whole head if head_dim is a power
of two. It is applied in steps of sums and differences, by the fast Walsh-Hadamard transform.

Slots of one step are distinct, save for those in block 0, the null block, whose content nobody reads.
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation
from fathom.kernels.kv_cache import KVCache


def rotate_and_store(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    slot_mapping: torch.Tensor,
    cache: KVCache,
    query_norm: torch.Tensor | None = None,
    key_norm: torch.Tensor | None = None,
    eps: float = 0.0,
) -> torch.Tensor:
    """The rotated queries, for products with the cache's keys; keys and values are stored."""
    return implementation(__name__, qkv).rotate_and_store(
        qkv, positions, cos, sin, slot_mapping, cache, query_norm, key_norm, eps
    )
