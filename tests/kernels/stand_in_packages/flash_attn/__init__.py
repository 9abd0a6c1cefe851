"""Two functions of the package flash-attn 2 in plain torch, by their documentation, for machines without a GPU.

They refuse what its paged kernels refuse: other types than 16-bit floats, pages of other sizes, numbers that do not lie
side by side, and lengths beyond the largest that the caller has named.
"""

from __future__ import annotations

import torch

PAGE = 256


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """q [total_q, nheads, headdim]; k, v [num_blocks, page, nheads_k, headdim] -> [total_q, nheads, headdim]."""
    assert block_table is not None, "only the paged form is here"
    assert cu_seqlens_q.dtype is cu_seqlens_k.dtype is torch.int32
    assert len(cu_seqlens_q) == len(cu_seqlens_k) == len(block_table) + 1
    outputs = []
    for request, blocks in enumerate(block_table):
        start, end = cu_seqlens_q[request : request + 2].tolist()
        length = int(cu_seqlens_k[request + 1] - cu_seqlens_k[request])
        assert end - start <= max_seqlen_q
        assert length <= max_seqlen_k
        keys, values = (_gathered(pages, blocks, length, q.dtype) for pages in (k, v))
        outputs.append(_attend(q[start:end], keys, values, softmax_scale, causal, window_size, softcap))
    return torch.cat(outputs)


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: None = None,
    v: None = None,
    rotary_cos: None = None,
    rotary_sin: None = None,
    cache_seqlens: torch.Tensor | None = None,
    cache_batch_idx: None = None,
    cache_leftpad: None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> torch.Tensor:
    """q [batch, seqlen, nheads, headdim]; caches [num_blocks, page, nheads_k, headdim] -> [batch, seqlen, ...]."""
    assert block_table is not None, "only the paged form is here"
    assert cache_seqlens is not None, "only with lengths"
    assert cache_seqlens.dtype is torch.int32
    assert len(q) == len(cache_seqlens) == len(block_table)
    outputs = []
    for request, length in enumerate(cache_seqlens.tolist()):
        keys, values = (_gathered(pages, block_table[request], length, q.dtype) for pages in (k_cache, v_cache))
        outputs.append(_attend(q[request], keys, values, softmax_scale, causal, window_size, softcap))
    return torch.stack(outputs)


def _gathered(pages: torch.Tensor, blocks: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    assert pages.dtype is dtype
    assert dtype in (torch.float16, torch.bfloat16)
    assert pages.shape[1] % PAGE == 0
    assert pages.shape[3] <= 256
    assert pages.stride(-1) == 1
    assert blocks.dtype is torch.int32
    return pages[blocks[: -(-length // pages.shape[1])].long()].flatten(0, 1)[:length].float()


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
) -> torch.Tensor:
    """Of one request, its last query at its last key."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
    scale = queries.shape[2] ** -0.5 if scale is None else scale
    scores = torch.einsum("qhd,khd->hqk", queries.float(), keys) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    place = torch.arange(len(queries))[:, None] + len(keys) - len(queries)
    key = torch.arange(len(keys))
    left, right = window_size
    is_seen = (key <= place) if causal else torch.ones(len(queries), len(keys), dtype=torch.bool)
    if left >= 0:
        is_seen = is_seen & (key >= place - left)
    if right >= 0:
        is_seen = is_seen & (key <= place + right)
    weights = torch.softmax(scores.masked_fill(~is_seen, float("-inf")), -1)
    return torch.einsum("hqk,khd->qhd", weights, values).to(queries.dtype)
