"""Paged attention for GPUs, in Triton: prefills, chunks and decodes in one launch.

A program computes one tile of queries of one request for one KV head. The query heads that share the KV head are rows
of the tile beside each other, so each key is read once for all of them:

    rows of a tile, 3 heads to a KV head     [q0 h0 | q0 h1 | q0 h2 | q1 h0 | q1 h1 | ...]

It walks over the keys that its queries see with the online softmax (Milakov and Gimelshein 2018; as in FlashAttention,
Dao et al. 2022). A request with a single query would keep only one program a KV head busy however long it is, so its
keys are cut into ranges, each a program's of its own, and a second kernel merges what they found (Flash-Decoding, Dao
et al. 2023). Ranges begin at fixed positions, so what a request gets does not depend on the others of its batch.

Where every request has one query, tile i is request i's. Else a tile's request is looked up on the device: request i's
tiles begin at number query_start_loc[i] // queries_per_tile + i, which leaves each request room for all of its tiles;
those left over end at once. So the host need not know the lengths, and a launch can be part of a CUDA graph.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from fathom.kernels.gpu import power_of_two
from fathom.kernels.kv_cache import KVCache

MAX_RANGES = 16
"""Most ranges that a single query's keys are cut into."""
MIN_RANGE_KEYS = 512
DECODE_ROWS = 16
"""Rows of a tile where every request has one query: the least that a tensor core takes."""


class Tile(NamedTuple):
    """What a program computes at once: rows of queries, and keys. warps: of the program."""

    rows: int
    keys: int
    warps: int

    @classmethod
    def of(cls, dtype: torch.dtype, dim: int, is_decode: bool) -> Tile:
        """Large enough to keep tensor cores busy, and so small that a processor's shared memory holds it, of which
        compute capability 8.6 and 8.9 have the least: 99 KiB.
        """
        if dtype is torch.float32:
            rows, keys, warps = (64, 32, 4) if dim <= 128 else (32, 16, 4)
        else:
            rows, keys, warps = (128, 64, 8) if dim <= 128 else (64, 32, 4)
        return cls(DECODE_ROWS, keys, 4) if is_decode else cls(rows, keys, warps)


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
    num_kv_heads, num_reqs = cache.keys.shape[1], len(seq_lens)
    group = num_heads // num_kv_heads
    is_decode = num_tokens == num_reqs  # every request has a query, so it has no other
    tile = Tile.of(query.dtype, power_of_two(head_dim), is_decode)
    rows = max(tile.rows, power_of_two(group))
    queries_per_tile = rows // group
    num_tiles = num_reqs if is_decode else num_tokens // queries_per_tile + num_reqs
    range_keys, num_ranges = _ranges(block_table.shape[1] * cache.block_size)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    partial = torch.empty(num_reqs, num_heads, num_ranges, head_dim, dtype=torch.float32, device=query.device)
    states = torch.empty(2, num_reqs, num_heads, num_ranges, dtype=torch.float32, device=query.device)
    lengths = (block_table, block_table.stride(0), query_start_loc, seq_lens)
    _attend[(num_tiles, num_kv_heads, num_ranges)](
        query,
        query.stride(0),
        cache.keys,
        cache.values,
        cache.keys.stride(0),
        cache.keys if cache.scales is None else cache.scales,
        0 if cache.scales is None else cache.scales.stride(0),
        *lengths,
        num_reqs,
        output,
        partial,
        states,
        scale,
        0 if window is None else window,
        0.0 if softcap is None else softcap,
        range_keys,
        HEADS=num_heads,
        KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        DIM=power_of_two(head_dim),
        PAGE=cache.block_size,
        KEY_DIM=cache.keys.stride(2),
        KEY_TOKEN=cache.keys.stride(3),
        ROWS=rows,
        QUERIES=queries_per_tile,
        KEYS=tile.keys,
        RANGES=num_ranges,
        DECODE=is_decode,
        SCALED=cache.scales is not None,
        WINDOWED=window is not None,
        CAPPED=softcap is not None,
        num_warps=tile.warps,
    )
    if num_ranges > 1:
        _merge[(num_reqs, num_heads)](
            partial,
            states,
            query_start_loc,
            seq_lens,
            num_reqs,
            output,
            0 if window is None else window,
            range_keys,
            HEADS=num_heads,
            HEAD_DIM=head_dim,
            DIM=power_of_two(head_dim),
            RANGES=num_ranges,
            WINDOWED=window is not None,
        )
    return output


def _ranges(most_keys: int) -> tuple[int, int]:
    """(keys of a range, ranges): what the longest request that the tables have room for is cut into."""
    range_keys = max(MIN_RANGE_KEYS, power_of_two(-(-most_keys // MAX_RANGES)))
    return range_keys, -(-most_keys // range_keys)


@triton.jit
def _request_of(tile, query_start_loc, num_reqs, QUERIES: tl.constexpr):
    """The last request whose tiles begin at this number or before."""
    low, high = 0, num_reqs - 1
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_loc + middle) // QUERIES + middle <= tile:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit
def _first_visible(position, window, WINDOWED: tl.constexpr):
    """The oldest key that a query at this position sees."""
    first = position * 0
    if WINDOWED:
        first = tl.maximum(position - window + 1, 0)
    return first


@triton.jit(do_not_specialize=["num_reqs"])
def _attend(
    query,
    query_stride,
    keys,
    values,
    page_stride,
    scales,
    scale_stride,
    block_table,
    table_stride,
    query_start_loc,
    seq_lens,
    num_reqs,
    output,
    partial,
    states,
    scale,
    window,
    softcap,
    range_keys,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    KEY_TOKEN: tl.constexpr,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    RANGES: tl.constexpr,
    DECODE: tl.constexpr,
    SCALED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
):
    tile, kv_head, key_range = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    GROUP: tl.constexpr = HEADS // KV_HEADS
    request = tile
    if not DECODE:
        request = _request_of(tile, query_start_loc, num_reqs, QUERIES)
    start = tl.load(query_start_loc + request)
    query_len = tl.load(query_start_loc + request + 1) - start
    seq_len = tl.load(seq_lens + request)
    first_query = 0 * tile
    if not DECODE:
        first_query = (tile - (start // QUERIES + request)) * QUERIES
    if first_query >= query_len:
        return
    # The tile's queries, and the keys that the first and the last of them see.
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, DIM)
    queries = first_query + rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    is_row = (rows < QUERIES * GROUP) & (queries < query_len)
    positions = seq_len - query_len + queries
    first_key = _first_visible(seq_len - query_len + first_query, window, WINDOWED)
    end_key = tl.minimum(seq_len - query_len + first_query + QUERIES, seq_len)
    # A single query's keys are cut into ranges; of others the first program does all.
    whole = (query_len > 1) | (first_key // range_keys == (end_key - 1) // range_keys)
    begin = tl.where(query_len > 1, first_key, tl.maximum(first_key, key_range * range_keys))
    end = tl.where(query_len > 1, end_key, tl.minimum(end_key, (key_range + 1) * range_keys))
    if (begin >= end) | ((query_len > 1) & (key_range > 0)):
        return
    places = (start + queries).to(tl.int64)[:, None] * query_stride + heads[:, None] * HEAD_DIM + dims[None, :]
    is_number = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    q = tl.load(query + places, mask=is_number, other=0.0)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    attended = tl.zeros([ROWS, DIM], tl.float32)
    for tile_start in range(begin // KEYS * KEYS, end, KEYS):
        key = tile_start + tl.arange(0, KEYS)
        is_key = (key >= begin) & (key < end)
        block = tl.load(block_table + request * table_stride + key // PAGE, mask=is_key, other=0).to(tl.int64)
        page = block * page_stride + kv_head * (HEAD_DIM * PAGE)
        k = tl.load(
            keys + page[None, :] + dims[:, None] * KEY_DIM + (key % PAGE)[None, :] * KEY_TOKEN,
            mask=is_key[None, :] & (dims < HEAD_DIM)[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
        if SCALED:
            scale_places = scales + block * scale_stride + kv_head * PAGE + key % PAGE
            scores *= tl.load(scale_places, mask=is_key, other=0.0)[None, :]
        if CAPPED:
            scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))  # tanh
        is_visible = is_key[None, :] & (key[None, :] <= positions[:, None])
        if WINDOWED:
            is_visible = is_visible & (key[None, :] > positions[:, None] - window)
        scores = tl.where(is_visible, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)  # of rows that saw nothing yet
        weights = tl.exp(scores - base[:, None])
        shrink = tl.exp(largest - base)
        total = total * shrink + tl.sum(weights, 1)
        largest = new_largest
        v = tl.load(
            values + page[:, None] + (key % PAGE)[:, None] * HEAD_DIM + dims[None, :],
            mask=is_key[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        if SCALED:
            weights *= tl.load(scale_places + KV_HEADS * PAGE, mask=is_key, other=0.0)[None, :]
        attended = attended * shrink[:, None] + tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    if whole:
        places = ((start + queries).to(tl.int64)[:, None] * HEADS + heads[:, None]) * HEAD_DIM + dims[None, :]
        tl.store(output + places, (attended / total[:, None]).to(q.dtype), mask=is_number)
    else:
        part = (request.to(tl.int64) * HEADS + heads) * RANGES + key_range
        tl.store(partial + part[:, None] * HEAD_DIM + dims[None, :], attended, mask=is_number)
        tl.store(states + part, largest, mask=is_row)
        tl.store(states + num_reqs * HEADS * RANGES + part, total, mask=is_row)


@triton.jit(do_not_specialize=["num_reqs"])
def _merge(
    partial,
    states,
    query_start_loc,
    seq_lens,
    num_reqs,
    output,
    window,
    range_keys,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    RANGES: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """One head of one request: what the ranges of its keys found, first to last."""
    request, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start = tl.load(query_start_loc + request)
    if tl.load(query_start_loc + request + 1) - start != 1:
        return
    position = tl.load(seq_lens + request) - 1
    first = _first_visible(position, window, WINDOWED) // range_keys
    last = position // range_keys
    if first == last:
        return
    dims = tl.arange(0, DIM)
    largest = float("-inf")
    total = 0.0
    attended = tl.zeros([DIM], tl.float32)
    for key_range in range(first, last + 1):
        part = (request * HEADS + head) * RANGES + key_range
        range_largest = tl.load(states + part)
        new_largest = tl.maximum(largest, range_largest)
        shrink, share = tl.exp(largest - new_largest), tl.exp(range_largest - new_largest)
        total = total * shrink + tl.load(states + num_reqs * HEADS * RANGES + part) * share
        numbers = tl.load(partial + part * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0.0)
        attended = attended * shrink + numbers * share
        largest = new_largest
    places = (start.to(tl.int64) * HEADS + head) * HEAD_DIM + dims
    tl.store(output + places, attended / total, mask=dims < HEAD_DIM)
