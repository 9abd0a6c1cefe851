"""Paged attention over a flat batch of requests of any query length (prefill, chunk and decode alike).

    paged_attention(
        query            [num_tokens, num_heads, head_dim]
        cache            the layer's KVCache, in any of its formats
        block_table      [num_reqs, max_blocks] int32
        query_start_loc  [num_reqs + 1] int32
        seq_lens         [num_reqs] int32
        scale            multiplies query . key
        window           keys that a query sees, itself included; None for all
        softcap          score = softcap * tanh(score / softcap); None for no cap
    ) -> [num_tokens, num_heads, head_dim], in the query's dtype

A request's queries are its last tokens: query i of n stands at position seq_len - n + i and sees the keys at
that position and before. The new keys and values are in the cache already. Table entries of blocks that lie
wholly before the window may be 0. Arithmetic is in float32, and a request's result does not depend on
the other requests of the batch.
"""

from __future__ import annotations

import torch

from fathom.kernels.choice import implementation
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
    """The queries' attention to the cached keys and values of their own requests."""
    return implementation(__name__, query).paged_attention(
        query, cache, block_table, query_start_loc, seq_lens, scale, window, softcap
    )
