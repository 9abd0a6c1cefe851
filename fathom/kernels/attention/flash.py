"""Paged attention by the package flash-attn, version 2: what attention_backend=FLASH_ATTN means.

It reads our pages where they lie: on a GPU keys and values are both [block_size, head_dim] for each head, so that only
the strides differ from those of the [block_size, num_kv_heads, head_dim] that it expects. What it cannot read,
`resolve_attention` has refused.

It cuts a long sequence's keys by how busy the GPU is, so a request's last bits do depend on the batch it is in.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

# It comes with no types, and is not among the dependencies.
from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache  # type: ignore[import-not-found]

from fathom.kernels.kv_cache import KVCache


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
    """See the package's docstring for shapes and rules. Every request has a query.

    What the host says to the kernels follows from shapes alone, so a decode's launch can be part of a CUDA graph.
    """
    num_tokens, num_reqs = len(query), len(seq_lens)
    keys, values = cache.keys.permute(0, 3, 1, 2), cache.values.transpose(1, 2)
    rules = {
        "block_table": block_table,
        "softmax_scale": scale,
        "causal": True,
        "window_size": (-1, -1) if window is None else (window - 1, 0),
        "softcap": softcap or 0.0,
    }
    if num_tokens == num_reqs:
        return flash_attn_with_kvcache(query[:, None], keys, values, cache_seqlens=seq_lens, **rules)[:, 0]
    return flash_attn_varlen_func(
        query,
        keys,
        values,
        cu_seqlens_q=query_start_loc,
        cu_seqlens_k=F.pad(seq_lens.cumsum(0, dtype=torch.int32), (1, 0)),
        max_seqlen_q=num_tokens,
        max_seqlen_k=block_table.shape[1] * cache.block_size,
        **rules,
    )
