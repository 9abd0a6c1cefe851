"""Norm, rotation and cache writes by one native kernel, which looks up its tokens' angles itself."""

from __future__ import annotations

import torch

from fathom.kernels.kv_cache import KVCache
from fathom.kernels.native import cpu, kv_cache_arguments


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
    """See the package's docstring for shapes and rules. The tables are contiguous."""
    num_tokens, row_size = qkv.shape
    num_kv_heads, head_dim = cache.keys.shape[1:3]
    num_heads = row_size // head_dim - 2 * num_kv_heads
    if qkv.stride(1) != 1:
        qkv = qkv.contiguous()
    positions, slot_mapping = positions.contiguous(), slot_mapping.contiguous()
    query = qkv.new_empty(num_tokens, num_heads, head_dim)
    cpu.rotate_and_store(
        *kv_cache_arguments(cache),
        query.data_ptr(),
        qkv.data_ptr(),
        positions.data_ptr(),
        slot_mapping.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        0 if query_norm is None else query_norm.data_ptr(),
        0 if key_norm is None else key_norm.data_ptr(),
        eps,
        num_tokens,
        qkv.stride(0),
        num_heads,
    )
    return query
