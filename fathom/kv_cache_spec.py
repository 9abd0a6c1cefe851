"""Values that describe the KV cache: what each layer needs, and how the pool is cut up.

All layers of all groups share one pool of interchangeable blocks. Layers with the same rule form groups of
equal size; a group's i-th layer stores its keys and values in tensor i, so a block id means one page in each
of ``layers_per_group`` tensors and never belongs to two groups at once:

    tensor 0   [block 0 | block 1 | block 2 | ...]     group 0 layer 0, group 1 layer 0, ...
    tensor 1   [block 0 | block 1 | block 2 | ...]     group 0 layer 1, group 1 layer 1, ...
                null      group 0   group 1
"""

from __future__ import annotations

import msgspec


class LayerKVSpec(msgspec.Struct, frozen=True):
    """What one attention layer stores: per token 2 x num_kv_heads x head_dim elements; window in tokens or None."""

    num_kv_heads: int
    head_dim: int
    dtype_bytes: int
    window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim * self.dtype_bytes


class KVCacheGroup(msgspec.Struct, frozen=True):
    """Layers (by index) that share one block table; `window` is None for full attention."""

    layers: tuple[int, ...]
    window: int | None = None


class KVCacheConfig(msgspec.Struct, frozen=True):
    """The pool as it is allocated. Block 0 is the null block: never handed out, harmless to read or write."""

    num_blocks: int
    block_size: int
    layers_per_group: int
    groups: tuple[KVCacheGroup, ...]
    bytes_per_block: int
