"""KVCache: one layer's pages as tensors. `kv_cache_spec` draws a page."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fathom.kv_cache_spec import KVDtype, LayerKVSpec

TORCH_DTYPES: dict[KVDtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


class KVCache(NamedTuple):
    """Views of one layer's pages, strided from page to page.

    keys: [num_blocks, num_kv_heads, head_dim, block_size], either of the last two side by side in memory.
    values: [num_blocks, num_kv_heads, block_size, head_dim].
    scales: [num_blocks, 2, num_kv_heads, block_size] float32, of keys (0) and values (1): what int8 numbers are
        multiplied by. None for the other formats.
    """

    keys: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor | None

    @classmethod
    def of_pages(cls, pages: torch.Tensor, spec: LayerKVSpec, block_size: int, keys_by_token: bool = False) -> KVCache:
        """pages [num_blocks, spec.page_bytes(block_size)] uint8, seen as what `spec` says that they hold.

        keys_by_token: whether a token's numbers lie side by side, as those of its value do; else the tokens do.
        """
        heads, dim, dtype = spec.num_kv_heads, spec.head_dim, TORCH_DTYPES[spec.dtype]
        scale_bytes = 8 * heads * block_size if spec.is_scaled else 0
        side_bytes = heads * dim * block_size * dtype.itemsize
        parts = pages[:, : scale_bytes + 2 * side_bytes].split([scale_bytes, side_bytes, side_bytes], dim=1)
        keys, values = (part.view(dtype) for part in parts[1:])
        by_token = (heads, block_size, dim)
        return cls(
            keys=(
                keys.unflatten(1, by_token).transpose(2, 3)
                if keys_by_token
                else keys.unflatten(1, (heads, dim, block_size))
            ),
            values=values.unflatten(1, by_token),
            scales=parts[0].view(torch.float32).unflatten(1, (2, heads, block_size)) if spec.is_scaled else None,
        )

    @property
    def block_size(self) -> int:
        return self.keys.shape[3]
