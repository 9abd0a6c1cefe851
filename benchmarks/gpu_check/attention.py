"""Paged attention in Triton beside plain torch in float32: prefills, chunks, decodes; odd lengths, shuffled blocks."""

from __future__ import annotations

from typing import Any, get_args

import torch

from benchmarks.gpu_check.comparing import TOLERANCE, Inputs, Worst, poisoned, widens_e4m3
from benchmarks.gpu_check.rows import Report, attempt
from fathom.kernels.attention import ref, triton
from fathom.kernels.kv_cache import KVCache
from fathom.kernels.rotate_and_store.ref import store
from fathom.kv_cache_spec import KVDtype, LayerKVSpec

BLOCK_SIZE = 16
HEADS = {64: (14, 2), 80: (6, 6), 96: (9, 3), 128: (32, 8), 256: (4, 1)}
"""Head dimension -> query heads, KV heads."""


def run(report: Report, *, device: str, dtype: str, dims: list[int], long: int, seed: int) -> None:
    """`long`: keys of the longest request."""
    inputs, number = Inputs(seed, device), getattr(torch, dtype)
    middle = dims[len(dims) // 2]
    cases: list[tuple[str, int, Any, dict[str, Any]]] = [(f"head dim {dim}", dim, dtype, {}) for dim in dims]
    cases.append(("window and soft-cap", middle, dtype, {"window": long // 3, "softcap": 20.0}))
    cases += [
        (f"KV cache in {kv_dtype}", middle, kv_dtype, {})
        for kv_dtype in get_args(KVDtype)
        if kv_dtype not in ("float32", "float16", "bfloat16") and (kv_dtype != "fp8_e4m3" or widens_e4m3(device))
    ]
    for what, dim, kv_dtype, options in cases:
        with attempt(report, what):
            worst = errors(inputs, number, dim, kv_dtype, long, options)
            report(what, worst.error, "error", most=TOLERANCE[number], must=True)


def errors(
    inputs: Inputs, dtype: torch.dtype, dim: int, kv_dtype: KVDtype, long: int, options: dict[str, Any]
) -> Worst:
    """Of one launch for all kinds of requests at once, and of one for decodes alone."""
    worst = Worst()
    lengths = [1, 13, long, inputs.choice.randint(2, long)]
    mixed = [*((length, 1) for length in lengths), (7, 7), (long - 1, long // 4 + 3), (9, 0), (long // 2, 5)]
    for requests in (mixed, [(length, 1) for length in lengths]):
        batch = Batch(inputs, requests, HEADS[dim], dim, kv_dtype)
        query = inputs.normal(batch.num_tokens, *HEADS[dim][:1], dim, dtype=dtype)
        with poisoned():
            found = batch.attend(triton, query, **options)
        worst.add(found, batch.attend(ref, query.float(), **options))
    return worst


class Batch:
    """Requests (keys, queries) with random keys and values in shuffled blocks, of a cache that is NaN elsewhere."""

    def __init__(
        self, inputs: Inputs, requests: list[tuple[int, int]], heads: tuple[int, int], dim: int, kv_dtype: KVDtype
    ) -> None:
        counts = [-(-length // BLOCK_SIZE) for length, _ in requests]
        blocks = (inputs.order(sum(counts)) + 1).split(counts)
        spec = LayerKVSpec(heads[1], dim, kv_dtype)
        pages = torch.full((sum(counts) + 1, spec.page_bytes(BLOCK_SIZE)), 255, dtype=torch.uint8, device=inputs.device)
        self.cache = KVCache.of_pages(pages, spec, BLOCK_SIZE, keys_by_token=True)
        for (length, _), own in zip(requests, blocks, strict=True):
            position = torch.arange(length, device=inputs.device)
            key, value = inputs.normal(2, length, heads[1], dim)
            store(key, value, own[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE, self.cache)
        self.table = torch.zeros(len(requests), max(counts) + 2, dtype=torch.int32, device=inputs.device)
        for row, own in zip(self.table, blocks, strict=True):
            row[: len(own)] = own
        queries = torch.tensor([0, *(count for _, count in requests)])
        self.num_tokens = int(queries.sum())
        self.starts = queries.cumsum(0).int().to(inputs.device)
        self.lengths = torch.tensor([length for length, _ in requests], dtype=torch.int32, device=inputs.device)

    def attend(self, module: Any, query: torch.Tensor, **options: Any) -> torch.Tensor:
        scale = query.shape[-1] ** -0.5
        return module.paged_attention(query, self.cache, self.table, self.starts, self.lengths, scale, **options)
