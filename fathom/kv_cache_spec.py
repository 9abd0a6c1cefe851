"""Values that describe the KV cache: what each layer needs, and how the pool is cut up.

All layers of all groups share one pool of interchangeable blocks. Layers with the same rule form groups of
equal size; a group's i-th layer stores its keys and values in a block's page i. So a block has
``layers_per_group`` pages, which lie side by side, and never belongs to two groups at once:

    block 0 (null)      block 1 (group 0)      block 2 (group 1)
    [page 0 | page 1]   [layer 0 | layer 1]    [layer 0 of group 1 | layer 1 of group 1]   ...

A short sequence's keys and values of all layers so fill few pages of the system's memory, which may be huge.

A page is one run of bytes, so that what an int8 number is multiplied by lies beside it:

    [ scales of keys, of values (int8 only) | keys of head 0, head 1, ... | values of head 0, head 1, ... ]

A head's values are [block_size, head_dim]. So are its keys on a GPU, whose threads read a token's numbers side by side;
on a CPU they are [head_dim, block_size], as the native product reads them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

KVDtype = Literal["float32", "float16", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2"]

NUMBER_BYTES: dict[KVDtype, int] = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
}
SCALE_BYTES = 4  # of each token's key and each value, per head
PAGE_ALIGNMENT = 64  # a cache line


class LayerKVSpec(msgspec.Struct, frozen=True):
    """What one attention layer stores: 2 x num_kv_heads x head_dim numbers a token; window in tokens or None."""

    num_kv_heads: int
    head_dim: int
    dtype: KVDtype
    window: int | None = None

    @property
    def is_scaled(self) -> bool:
        """Whether each token's head has a scale for its key and one for its value."""
        return self.dtype == "int8"

    @property
    def bytes_per_token(self) -> int:
        scale_bytes = SCALE_BYTES if self.is_scaled else 0
        return 2 * self.num_kv_heads * (self.head_dim * NUMBER_BYTES[self.dtype] + scale_bytes)

    def page_bytes(self, block_size: int) -> int:
        """Bytes of a block, rounded up so that every page is aligned."""
        return -(-block_size * self.bytes_per_token // PAGE_ALIGNMENT) * PAGE_ALIGNMENT


class KVCacheGroup(msgspec.Struct, frozen=True):
    """Layers (by index) that share one block table; `window` is None for full attention."""

    layers: tuple[int, ...]
    window: int | None = None


def pages_of_layers(groups: tuple[KVCacheGroup, ...], layers: range) -> int:
    """Pages that a block needs where only these layers are."""
    return max(sum(layer in layers for layer in group.layers) for group in groups)


class KVCacheConfig(msgspec.Struct, frozen=True):
    """The pool as it is allocated. Block 0 is the null block: never handed out, harmless to read or write.

    bytes_per_block: on the worker whose layers take the most.
    """

    num_blocks: int
    block_size: int
    layers_per_group: int
    groups: tuple[KVCacheGroup, ...]
    bytes_per_block: int

    def of_layers(self, layers: range, spec: LayerKVSpec) -> KVCacheConfig:
        """The same blocks and groups in a pool that has pages for some of the layers only, counted from the first.

        spec: of each of them.
        """
        groups = tuple(
            KVCacheGroup(tuple(layer - layers.start for layer in group.layers if layer in layers), group.window)
            for group in self.groups
        )
        pages = pages_of_layers(self.groups, layers)
        bytes_per_block = pages * spec.page_bytes(self.block_size)
        return KVCacheConfig(self.num_blocks, self.block_size, pages, groups, bytes_per_block)
