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
that position and before. Where there are as many queries as requests, each request has one. The new keys and values
are in the cache already. Table entries of blocks that lie wholly before the window may be 0. Arithmetic is in float32,
save for two caches on x86 processors: bfloat16 on those that multiply it, where queries and weights are rounded to it
and sums are not; and int8 from AVX2 on, where both become integers of 16 bits and sums are exact. A request's result
does not depend on the other requests of the batch, save for flash-attn's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fathom.errors import ConfigError
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


AttentionKernel = Callable[..., torch.Tensor]
"""`paged_attention`, or another function with its parameters."""


def attention_kernel(backend: str) -> AttentionKernel:
    """The kernel that a resolved `attention_backend` names.

    Raises:
        ConfigError: flash-attn is installed, but not for this torch.
    """
    if backend != "FLASH_ATTN":
        return paged_attention
    try:
        from fathom.kernels.attention import flash
    except ImportError as error:
        raise ConfigError(
            f"attention_backend={backend}, but flash-attn cannot be imported: {error}.",
            parameter="attention_backend",
            value=backend,
            hint="Install a build of flash-attn for this torch, or use attention_backend=TRITON_ATTN.",
        ) from error
    return flash.paged_attention
