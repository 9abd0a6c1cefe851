"""Write a step's new keys and values to their slots in the paged cache, in place.

    write_kv(
        key, value              [num_tokens, num_kv_heads, head_dim]
        key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_dim], contiguous
        slot_mapping            [num_tokens] int64, block * block_size + offset
    )

Slots of one step are distinct, save for those in block 0, the null block, whose content nobody reads.
"""

from fathom.kernels.kv_write.ref import write_kv

__all__ = ["write_kv"]
