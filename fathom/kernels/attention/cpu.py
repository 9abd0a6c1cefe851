"""Paged attention by the native kernels."""

from __future__ import annotations

import torch

from fathom.kernels.kv_cache import KVCache
from fathom.kernels.native import cpu, kv_cache_arguments


def paged_attention(
    query: torch.Tensor,
    cache: KVCache,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """See the package's docstring for shapes and rules."""
    num_tokens, num_heads, head_dim = query.shape
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    if block_table.stride(1) != 1:
        block_table = block_table.contiguous()
    query_start_loc, seq_lens = query_start_loc.contiguous(), seq_lens.contiguous()
    output = query.new_empty(num_tokens, num_heads, head_dim)
    cpu.paged_attention(
        *kv_cache_arguments(cache),
        output.data_ptr(),
        query.data_ptr(),
        block_table.data_ptr(),
        query_start_loc.data_ptr(),
        seq_lens.data_ptr(),
        query.stride(0),
        block_table.stride(0),
        len(seq_lens),
        num_heads,
        scale,
        window or 0,
        softcap or 0.0,
    )
    return output
