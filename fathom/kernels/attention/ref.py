"""Paged attention in plain torch: one request at a time, its own blocks gathered, its queries in tiles.

What a tile of queries sees is one contiguous run of keys, cut so that its first key is the oldest that the
tile's first query may see and its last key is the tile's last query itself:

    keys        . . [a b c d e f g h]
    queries               [e f g h]        window 5: e sees a..e, h sees d..h
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from fathom.kernels.kv_cache import KVCache

# Bounds the score matrix (tile x keys per head) whatever the length of a prefill chunk.
QUERY_TILE = 512


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
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    starts = query_start_loc.tolist()
    for row, seq_len in enumerate(seq_lens.tolist()):
        start, end = starts[row], starts[row + 1]
        if start == end:
            continue
        first_position = seq_len - (end - start)
        oldest = _oldest_visible(first_position, window)
        keys, values = _gather(cache, block_table[row], oldest, seq_len)
        for tile in range(start, end, QUERY_TILE):
            tile_end = min(tile + QUERY_TILE, end)
            tile_position = first_position + tile - start
            seen = slice(_oldest_visible(tile_position, window) - oldest, tile_position + tile_end - tile - oldest)
            output[tile:tile_end] = _attend(query[tile:tile_end], keys[seen], values[seen], scale, window, softcap)
    return output


def _oldest_visible(position: int, window: int | None) -> int:
    return 0 if window is None else max(0, position - window + 1)


def _gather(cache: KVCache, blocks: torch.Tensor, first: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of positions first .. end-1, each [end - first, num_kv_heads, head_dim] float32."""
    first_block = first // cache.block_size
    used = blocks[first_block : -(-end // cache.block_size)]
    skipped = first_block * cache.block_size
    sides = []
    for side, pages in enumerate((cache.keys.transpose(2, 3), cache.values)):
        numbers = pages.index_select(0, used).float()
        if cache.scales is not None:
            numbers = numbers * cache.scales[:, side].index_select(0, used)[..., None]
        sides.append(numbers.transpose(1, 2).flatten(0, 1)[first - skipped : end - skipped])
    return sides[0], sides[1]


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Attention of query [n, heads, dim] over keys and values [m, kv_heads, dim], aligned at their ends."""
    mask = None if len(query) == 1 else _visible(len(query), len(keys), window, query.device)
    if softcap is not None:
        return _attend_softcapped(query.float(), keys, values, scale, softcap, mask)
    attended = F.scaled_dot_product_attention(
        query.float().transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        attn_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)


def _visible(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """[num_queries, num_keys] bool: which keys each query sees. A single query sees all that it was given."""
    key = torch.arange(num_keys, device=device)
    query = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    visible = key <= query
    return visible if window is None else visible & (key > query - window)


def _attend_softcapped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    softcap: float,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """The same with capped scores, which scaled_dot_product_attention cannot do."""
    num_queries, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    # The heads that share one KV head become rows of one product, so that keys are not repeated in memory.
    grouped = query.view(num_queries, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)
    scores = grouped.flatten(1, 2) @ keys.permute(1, 2, 0) * scale
    scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.view(num_kv_heads, -1, num_queries, len(keys)).masked_fill(~mask, -math.inf).flatten(1, 2)
    attended = torch.softmax(scores, dim=-1) @ values.transpose(0, 1)
    return (
        attended.view(num_kv_heads, -1, num_queries, head_dim)
        .permute(2, 0, 1, 3)
        .reshape(num_queries, num_heads, head_dim)
    )
