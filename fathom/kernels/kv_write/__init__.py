"""Write a step's new keys and values to their slots in the paged cache, in place.

    write_kv(
        key, value              [num_tokens, num_kv_heads, head_dim]
        key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_dim], contiguous
        slot_mapping            [num_tokens] int64, block * block_size + offset
    )

Slots of one step are distinct, save for those in block 0, the null block, whose content nobody reads.
"""

from __future__ import annotations

import torch

from fathom.kernels.kv_write import cpu, ref
from fathom.kernels.native import serves


def write_kv(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Store each token's key and value in its slot."""
    kernel = cpu if serves(key) and serves(key_cache) else ref
    kernel.write_kv(key, value, key_cache, value_cache, slot_mapping)
