"""KVCache: one layer's pages as tensors. `kv_cache_spec` draws a page."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fathom.kv_cache_spec import LayerKVSpec


class KVCache(NamedTuple):
    """Views of one layer's pages, strided from page to page.

    keys: [num_blocks, num_kv_heads, head_dim, block_size], a block's tokens side by side.
    values: [num_blocks, num_kv_heads, block_size, head_dim].
    scales: [num_blocks, 2, num_kv_heads, block_size] float32, of keys (0) and values (1): what int8 numbers are
        multiplied by. None for the other formats.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None

    @classmethod
    def of_pages(cls, pages: torch.Tensor, spec: LayerKVSpec, block_size: int) -> KVCache:
        """pages [num_blocks, spec.page_bytes(block_size)] uint8, seen as what `spec` says that they hold."""
        heads, dim, dtype = spec.num_kv_heads, spec.head_dim, getattr(torch, spec.dtype)
        scale_bytes = 8 * heads * block_size if spec.is_scaled else 0
        side_bytes = heads * dim * block_size * dtype.itemsize
        parts = pages[:, : scale_bytes + 2 * side_bytes].split([scale_bytes, side_bytes, side_bytes], dim=1)
        return cls(
            keys=parts[1].view(dtype).unflatten(1, (heads, dim, block_size)),
            values=parts[2].view(dtype).unflatten(1, (heads, block_size, dim)),
            scales=parts[0].view(torch.float32).unflatten(1, (2, heads, block_size)) if spec.is_scaled else None,
        )

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]
