"""Caches for tests: every byte is 255, which in every format is read as NaN, until something is written."""

from __future__ import annotations

import torch

from fathom.kernels.kv_cache import KVCache
from fathom.kernels.rotate_and_store.ref import store
from fathom.kv_cache_spec import KVDtype, LayerKVSpec

FORMATS: tuple[KVDtype, ...] = ("float32", "float16", "bfloat16", "int8")
FP8: tuple[KVDtype, ...] = ("fp8_e4m3", "fp8_e5m2")
"""Formats that the native kernels do not read."""


def nan_cache(
    num_blocks: int,
    block_size: int,
    kv_heads: int,
    dim: int,
    dtype: KVDtype = "float32",
    keys_by_token: bool = False,
) -> KVCache:
    spec = LayerKVSpec(kv_heads, dim, dtype)
    pages = torch.full((num_blocks, spec.page_bytes(block_size)), 255, dtype=torch.uint8)
    return KVCache.of_pages(pages, spec, block_size, keys_by_token)


def cache_of(kv: torch.Tensor, blocks: torch.Tensor, block_size: int, dtype: KVDtype = "float32") -> KVCache:
    """A cache with keys and values kv [2, length, kv_heads, dim] of one request that has these blocks."""
    _, length, kv_heads, dim = kv.shape
    cache = nan_cache(int(blocks.max()) + 1, block_size, kv_heads, dim, dtype)
    positions = torch.arange(length)
    store(*kv, blocks.long()[positions // block_size] * block_size + positions % block_size, cache)
    return cache


def stored(cache: KVCache, slots: list[int]) -> torch.Tensor:
    """What these slots hold, [2, len(slots), kv_heads, dim] float32."""
    block, offset = torch.tensor(slots) // cache.block_size, torch.tensor(slots) % cache.block_size
    kv = torch.stack([cache.keys.transpose(2, 3)[block, :, offset], cache.values[block, :, offset]]).float()
    return kv if cache.scales is None else kv * cache.scales[block, :, :, offset].transpose(0, 1)[..., None]
